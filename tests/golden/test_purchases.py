"""All 69,659 purchases: the online features against pandas, the answers in the stream, the models trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from core.events import Observation, Prediction
from examples.purchases import offline
from examples.purchases.data import CUSTOMERS, DAY_MS, PURCHASES, observations
from examples.purchases.features import FIELDS, matrix, running
from examples.purchases.labels import HORIZON_MS, RETURNS, Judge, Purchases
from examples.purchases.train import LEARN_MS, NAME, Trained, train
from models import ort
from models.features import SESSION
from models.store import ModelStore
from tables.aggregates import Aggregates

Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def events() -> list[Observation]:
    return observations()


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return offline.frame()


@pytest.fixture(scope="module")
def expected(table: pd.DataFrame) -> pd.DataFrame:
    return offline.features(table)


@pytest.fixture(scope="module")
def aggregates(expected: pd.DataFrame) -> Aggregates:
    return Aggregates(expected.columns)


@pytest.fixture(scope="module")
def online(events: list[Observation], aggregates: Aggregates) -> Floats:
    return running(events, aggregates)


@pytest.fixture(scope="module")
def trained(events: list[Observation], tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelStore, list[Trained]]:
    store = ModelStore(str(tmp_path_factory.mktemp("store")))
    return store, train(events, store)


def test_every_purchase_is_an_observation_in_time_order(events: list[Observation], table: pd.DataFrame) -> None:
    assert len(events) == len({event.id for event in events}) == PURCHASES
    assert len({event.session for event in events}) == CUSTOMERS
    assert [event.id for event in events] == table["id"].tolist(), "time, and the file's order within a day"
    assert [event.ts for event in events] == (table["day"] - pd.Timestamp(0)).dt.total_seconds().mul(1000).tolist()
    assert [event.features["amount"] for event in events] == table["amount"].tolist()


def test_every_feature_of_every_purchase_equals_pandas(online: Floats, expected: pd.DataFrame) -> None:
    for place, name in enumerate(expected.columns):
        # A z-score is in deviations: where a value is the mean of those before it, only rounding is left of it.
        zero = 1e-12 if "zscore" in name else 0.0
        np.testing.assert_allclose(online[:, place], expected[name].to_numpy(), rtol=1e-9, atol=zero, err_msg=name)


def cut(sizes: Sequence[int], n: int) -> list[int]:
    """The sizes again and again, until they hold n events."""
    cuts = np.minimum(np.cumsum(np.resize(sizes, n)), n)
    return [int(size) for size in np.diff(cuts, prepend=0) if size]


@pytest.mark.parametrize(
    "sizes", [[PURCHASES], [512], [1, 2, 3, 500, 1, 20_000]], ids=["one batch", "polls of 512", "uneven"]
)
def test_batches_change_no_bit_of_any_feature(
    sizes: list[int], events: list[Observation], aggregates: Aggregates, online: Floats
) -> None:
    seen = running(events, aggregates, cut(sizes, PURCHASES))
    assert np.array_equal(seen, online, equal_nan=True)


def test_single_events_see_the_same_as_batches(
    events: list[Observation], aggregates: Aggregates, online: Floats
) -> None:
    first = events[:3_000]
    assert np.array_equal(running(first, aggregates, [1] * len(first)), online[: len(first)], equal_nan=True)


def test_the_model_sees_those_features_as_float32(events: list[Observation], expected: pd.DataFrame) -> None:
    x = matrix(events)
    for place, field in enumerate(FIELDS):
        if field.name.startswith(SESSION):
            default = 0.0 if field.default is None else float(field.default)
            want = expected[field.name].fillna(default).to_numpy(np.float32)
            np.testing.assert_allclose(x[:, place], want, rtol=2e-7, atol=1e-12, err_msg=field.name)


def test_the_stream_answers_what_pandas_answers(events: list[Observation], table: pd.DataFrame) -> None:
    purchases = Purchases(events)
    again = [purchases.again(event.session, event.ts) for event in events]
    assert again == offline.bought_again(table).tolist()


def test_both_versions_are_good_out_of_time(trained: tuple[ModelStore, list[Trained]]) -> None:
    store, versions = trained
    assert store.versions(NAME) == [version.folder.manifest.version for version in versions] == ["1", "2"]
    assert all(version.auc >= 0.73 for version in versions)
    assert all(version.judged > 20_000 for version in versions)


def test_training_again_gives_the_same_bytes(
    trained: tuple[ModelStore, list[Trained]], events: list[Observation], tmp_path: Path
) -> None:
    _, versions = trained
    assert [v.folder.sha256 for v in train(events, ModelStore(str(tmp_path)))] == [v.folder.sha256 for v in versions]


def test_the_judge_of_the_stream_finds_the_auc_of_the_training(
    trained: tuple[ModelStore, list[Trained]], events: list[Observation]
) -> None:
    _, (first, _) = trained
    session = ort.runtime.InferenceSession(str(first.folder.onnx), providers=["CPUExecutionProvider"])
    (scores,) = session.run(["probabilities"], {"features": matrix(events)})
    judge = Judge()
    for offset, (event, p) in enumerate(zip(events, scores[:, 1].tolist(), strict=True)):
        judge.bought(event)
        judge.predicted(
            Prediction(
                id=f"observations/0/{offset}",
                event_id=event.id,
                session=event.session,
                ts=event.ts,
                model=NAME,
                version="1",
                label=RETURNS,
                scores={RETURNS: p},
                confidence=None,
                low_confidence=False,
                role="active",
            )
        )
    verdict = judge.verdicts(since_ms=events[0].ts + LEARN_MS + HORIZON_MS)["1"]
    assert verdict.judged == first.judged
    assert verdict.auc == pytest.approx(first.auc, abs=1e-4)
    assert judge.purchases.newest - events[0].ts == 545 * DAY_MS
