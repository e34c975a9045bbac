"""`faust -A app doctor`: each thing that a worker needs, well or with what to do about it."""

from __future__ import annotations

import json
from pathlib import Path

from tests import babbler, tally
from tests.command import command
from tests.kafka import Broker, free_port


async def test_a_doctor_that_finds_nothing_says_so(kafka: Broker, prefix: str, tmp_path: Path) -> None:
    tally.publish(tmp_path / "store", "1")
    babbler.publish(tmp_path / "store")
    found = command(
        "doctor", "--json", broker=kafka.url, topic_prefix=prefix, app_id=f"{prefix}app", data_dir=tmp_path / "data",
        model_store=tmp_path / "store", web_port=free_port(),
    )  # fmt: skip
    document = json.loads(found.stdout)
    assert found.returncode == 0, document
    assert [row["check"] for row in document["checks"]] == [
        "broker", "transactions", "rights", "topics", "clock", "broker TLS", "device", "store", "data folder", "web",
        "web TLS",
    ]  # fmt: skip
    stored = next(row["detail"] for row in document["checks"] if row["check"] == "store")
    assert {f"{babbler.NAME}@1", "tally@1"} <= set(stored.partition(":")[0].split(", ")), "language models too"


async def test_a_doctor_names_each_fault_and_goes_on(tmp_path: Path) -> None:
    folder = tally.publish(tmp_path / "store", "1")
    (folder / "model.onnx").write_bytes(b"not the bytes that the manifest names")
    (tmp_path / "file").write_text("no folder")
    found = command(
        "doctor", "--json", broker=f"kafka://127.0.0.1:{free_port()}", data_dir=tmp_path / "file",
        model_store=tmp_path / "store", web_bind="0.0.0.0", web_port=free_port(),
    )  # fmt: skip
    assert found.returncode == 1
    faults = {row["check"]: row["detail"] for row in json.loads(found.stdout)["checks"] if not row["ok"]}
    assert faults.keys() == {"broker", "store", "data folder", "web"}
    assert "sha256" in faults["store"]
    assert "HOMUNCULUS_WEB_TOKEN" in faults["web"]
    assert "HOMUNCULUS_DATA_DIR" in faults["data folder"]
