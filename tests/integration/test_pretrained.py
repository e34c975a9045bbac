"""A text classifier answers observations through a real broker, beside a model of numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kafka import Broker
from tests.rig import rig_on
from tests.unit.test_pretrained import TEXTS, reads, scored
from tests.worker import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def test_texts_are_scored_by_the_version_that_reads_them(broker: Broker, tmp_path: Path) -> None:
    with rig_on(broker, tmp_path) as rig:
        folder = reads(rig.store)
        rig.worker("a").start()
        rig.control({"active": "1"}, model="reads")
        rig.wait_records("deployments", 1)
        for number, text in enumerate([*TEXTS, None]):
            features = {} if text is None else {"text": text}
            event = {"id": f"e{number}", "session": f"s{number}", "ts": 1_764_374_400_000, "features": features}
            rig.publisher.send(rig.topic("observations"), f"s{number}".encode(), json.dumps(event).encode())
        until(rig.publisher.delivered, 30, what="the observations are on their topic", alive=rig.running())
        rig.wait_records("predictions", len(TEXTS))
        rig.wait_records("dead-letters", 1)
        (letter,) = rig.reader("dead-letters").records
        assert "field 'text' is None" in letter.headers["message"]
        expected = {f"s{number}": scored(folder, [text])[0] for number, text in enumerate(TEXTS)}
        for record in rig.reader("predictions").records:
            got = [record.json["scores"][label] for label in folder.manifest.labels]
            assert got == pytest.approx(list(expected[record.json["session"]]), abs=1e-5)
