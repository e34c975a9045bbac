"""All 69,659 real purchases through whole workers, the version changed in the middle: each state, each score."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import onnxruntime as ort
import pandas as pd
import pytest
from numpy.typing import NDArray

from core.events import Observation
from examples.purchases import offline
from examples.purchases.data import PURCHASES, observations
from examples.purchases.train import NAME
from examples.purchases.versions import trained
from models.manifest import Manifest
from tests.kafka import Broker
from tests.rig import Rig, rig_on
from tests.worker import tails

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

VERSIONS: Final = ("1", "2")


@pytest.fixture(scope="module")
def events() -> list[Observation]:
    return observations()


@pytest.fixture(scope="module")
def expected() -> pd.DataFrame:
    """Raw and session features of every purchase by its id, computed by pandas over the finished file."""
    table = offline.frame()
    return pd.concat([table[["id", *offline.FIELDS]], offline.features(table)], axis=1).set_index("id")


@pytest.mark.parametrize(("partitions", "workers"), [(1, 1), (1, 2), (8, 1), (8, 2)])
def test_every_purchase_is_scored_once_by_the_version_it_names_on_the_features_that_pandas_computes(
    kafka: Broker, tmp_path: Path, events: Sequence[Observation], expected: pd.DataFrame, partitions: int, workers: int
) -> None:
    with rig_on(kafka, tmp_path, partitions=partitions) as rig:
        shutil.copytree(trained(events), rig.store, dirs_exist_ok=True)
        for number in range(workers):
            rig.worker(f"w{number}").start()
        rig.control({"active": "1"}, model=NAME)
        for worker in rig.running():
            worker.wait_ready()

        publish(rig, events[: PURCHASES // 2])
        rig.wait_records("predictions", PURCHASES // 4)
        rig.control({"active": "2"}, model=NAME)
        rig.wait_records("predictions", PURCHASES // 2)
        publish(rig, events[PURCHASES // 2 :])
        rig.wait_records("predictions", PURCHASES, within_s=120)
        assert_rows(rig, events, expected)
        rig.terminate()
        predictions = {record.json["event_id"]: record.json for record in rig.reader("predictions").read_out()}
        assert len(rig.reader("predictions").records) == PURCHASES, tails(rig.workers)
        assert predictions.keys() == set(expected.index), tails(rig.workers)
        for version in VERSIONS:
            ids = [event for event, prediction in predictions.items() if prediction["version"] == version]
            assert ids, f"version {version} never answered"
            computed, labels = scores_of(rig.store / NAME / version, expected.loc[ids])
            got = [[predictions[event]["scores"][label] for label in labels] for event in ids]
            np.testing.assert_allclose(got, computed, rtol=0, atol=1e-5)


def publish(rig: Rig, events: Sequence[Observation]) -> None:
    """Sends them as fast as it goes."""
    for event in events:
        rig.publisher.send(rig.topic("observations"), event.session.encode(), msgspec.json.encode(event))
    rig.publisher.flush()


def scores_of(folder: Path, features: pd.DataFrame) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """ONNX Runtime's probabilities on these features as float32, and the labels of their columns."""
    manifest = Manifest.read(folder / "manifest.json", folder.name)
    inputs = {
        name: np.column_stack([features[field.name].fillna(float(field.default or 0.0)) for field in given.fields])
        for name, given in manifest.inputs.items()
    }
    session = ort.InferenceSession(folder / "model.onnx")
    rows = {name: matrix.astype(np.float32) for name, matrix in inputs.items()}
    (probabilities,) = session.run([manifest.outputs.probabilities], rows)
    return probabilities, manifest.labels


def assert_rows(rig: Rig, events: Sequence[Observation], expected: pd.DataFrame) -> None:
    """The tables' rows of a sample of customers equal pandas' features of their last purchase."""
    last = {event.session: event.id for event in events}
    for customer in sorted(last)[::500]:
        row = rig.state(customer)
        assert row["count"] == expected.at[last[customer], "session.count"]
        for column, value in row.items():
            if f"session.{column}" in expected.columns:
                assert value == pytest.approx(expected.at[last[customer], f"session.{column}"], rel=1e-9), column
