"""The demo's story: labels when they are known, what a trainer makes of the stream, what counts as having happened."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.events import Alert, Canary, Deployment, Feedback, Observation, Retrain
from examples.purchases.aftermath import Aftermath
from examples.purchases.data import DAY_MS
from examples.purchases.judged import Judged
from examples.purchases.labels import HORIZON_MS, LAPSES, RETURNS, Purchases, Quality
from examples.purchases.ledger import Ledger
from examples.purchases.outcomes import outcomes
from examples.purchases.scoring import scores
from examples.purchases.story import Story
from examples.purchases.train import NAME, Period, candidates, made
from examples.purchases.trainer import Known, TrainingError, known, trained
from models.store import ModelStore

SHOP = random.Random(7)


def bought(number: int, session: str, day: int) -> Observation:
    return Observation(f"e{number}", session, day * DAY_MS, {"amount": 12.0, "quantity": float(1 + number % 3)})


streams = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 200)), min_size=1, max_size=30).map(
    lambda given: [bought(n, who, day) for n, (who, day) in enumerate(sorted(given, key=lambda one: one[1]))]
)


@settings(deadline=None)
@given(events=streams)
def test_each_purchase_is_told_once_what_the_judge_knows_and_not_before_it_is_known(events: list[Observation]) -> None:
    purchases = Purchases(events)
    told = outcomes(events)
    found = {one.event_id: one for each in told for one in each}
    assert sum(map(len, told)) == len(found)
    for place, each in enumerate(told):
        assert all(one.ts <= events[place].ts for one in each), "nobody tells what will be"
    for event in events:
        again = purchases.again(event.session, event.ts)
        if again or purchases.known(event.ts):
            assert found[event.id].label == (RETURNS if again else LAPSES)
            assert found[event.id].session == event.session
            assert event.ts < found[event.id].ts <= event.ts + HORIZON_MS
        else:
            assert event.id not in found


def shop(days: int = 240, customers: int = 140) -> tuple[list[Observation], list[Feedback]]:
    """Customers who come often or seldom, and what became of their purchases."""
    visits = [(day, who) for who in range(customers) for day in range(days) if SHOP.random() < (0.3, 0.008)[who % 2]]
    events = [bought(n, f"c{who}", day) for n, (day, who) in enumerate(sorted(visits))]
    return events, [one for each in outcomes(events) for one in each]


def asked(until: int, version: str = "1") -> Retrain:
    return Retrain(id="control/0/9/retrain/x", model=NAME, version=version, began=None, until=until, sources=[], ts=0)


def test_a_trainer_learns_from_what_is_known_by_then_in_whatever_order_it_comes() -> None:
    events, feedback = shop(120, 10)
    until = 100 * DAY_MS
    data = known(events, feedback, until)
    assert data.ts.max() <= until - HORIZON_MS
    assert len(data.ts) == sum(event.ts <= until - HORIZON_MS for event in events)
    purchases = Purchases(events)
    theirs = [purchases.again(event.session, event.ts) for event in events if event.ts <= until - HORIZON_MS]
    assert data.returned.tolist() == theirs
    by_partition = sorted(events, key=lambda event: (event.session, event.ts))
    again = known(by_partition, feedback[::-1], until)
    assert sorted(map(tuple, again.x.tolist())) == sorted(map(tuple, data.x.tolist()))
    without = known(events, feedback[1:], until)
    assert len(without.ts) == len(data.ts) - 1, "a purchase that nobody has told of is left out"


@pytest.fixture(scope="module")
def data() -> Known:
    events, feedback = shop()
    return known(events, feedback, 240 * DAY_MS)


def with_version_one(folder: Path, data: Known, returned: Any) -> ModelStore:
    store = ModelStore(str(folder))
    first = Period(data.x[:800], returned[:800])
    made(candidates()["1"]().fit(first.x, first.returned), "1", first, "a test", store)
    return store


def test_a_candidate_that_is_better_is_published_under_the_next_number(tmp_path: Path, data: Known) -> None:
    store = with_version_one(tmp_path, data, ~data.returned)  # it has learnt the contrary
    until = int(data.ts[-1]) + HORIZON_MS
    candidate = trained(asked(until), data, store)
    assert store.versions(NAME) == ["1", "2"]
    manifest = candidate.folder.manifest
    assert manifest.made_by is not None
    assert manifest.made_by.endswith("control/0/9/retrain/x"), "so that nobody does it again"
    assert manifest.feedback is not None
    assert "learnt from" in candidate.told
    assert set(manifest.features) == {"quantity"}


def test_what_is_no_better_is_not_published(tmp_path: Path, data: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    store = with_version_one(tmp_path, data, data.returned)
    monkeypatch.setattr("examples.purchases.trainer.scores", lambda version, x: data.returned[-len(x) :].astype(float))
    with pytest.raises(TrainingError, match=r"is no better than the 1\.000 of version 1"):
        trained(asked(0), data, store)
    assert store.versions(NAME) == ["1"]


def test_too_little_is_not_learnt_from(tmp_path: Path, data: Known) -> None:
    few = Known(data.x[:100], data.returned[:100], data.ts[:100])
    with pytest.raises(TrainingError, match="to prove with"):
        trained(asked(0), few, ModelStore(str(tmp_path)))
    with pytest.raises(TrainingError, match="no purchase has its answer yet"):
        trained(asked(0), Known(data.x[:0], data.returned[:0], data.ts[:0]), ModelStore(str(tmp_path)))


EVENTS = [bought(n, "a", n) for n in range(400)]


def alert(kind: str, subject: str, **evidence: Any) -> Alert:
    return Alert(
        id=f"s/{kind}", kind=kind, severity="info", state="opened", subject=subject, ts=0, title="t", evidence=evidence
    )


def deployment(revision: int, active: str, author: str, canary: str | None = None) -> Deployment:
    beside = Canary(version=canary, share=0.5) if canary else None
    return Deployment(model=NAME, revision=revision, active=active, since=0, author=author, canary=beside, reason="r")


def story() -> Story:
    """One in which all goes well: the alarm is written at 10,000 ms."""
    told = Story("2")
    told.alerted(alert("drift", f"{NAME}@1"), 1)  # another's
    window = {"records": 200, "from_ts": 313 * DAY_MS, "to_ts": 315 * DAY_MS, "mean": 0.18}
    told.alerted(
        alert("drift", f"{NAME}@2", window=window, reference={"mean": 0.25}, statistic=0.2, critical=0.1), 10_000
    )
    told.deployed(deployment(2, "2", "scripts/demo"), 2)
    told.deployed(deployment(3, "1", "drift"), 10_100)
    told.deployed(deployment(4, "1", "trainer", canary="3"), 20_000)
    told.alerted(alert("canary_promoted", NAME, share=0.5, figures={"answers": 510, "compared": 500, "agreed": 450}), 3)
    told.deployed(deployment(5, "3", "limits"), 30_000)
    return told


def aftermath(told: Story, fallback: int = 10_500, better: float = 0.76, apart: float = 1e-7) -> Aftermath:
    judged = Judged(Quality(100, 0.4, 0.75), {"1": Quality(9, 0.4, 0.7), "2": Quality(9, 0.4, 0.75)}, apart)
    after = {**judged.after, "3": Quality(9, 0.4, better)}
    live = {"fallback": fallback, "promoted": 30_100}
    return Aftermath(Ledger(EVENTS), told, live, 9.0, Judged(judged.before, after, apart))


def broken(told: Aftermath) -> list[str]:
    return [claim for held, claim in told.claims() if not held]


def test_a_story_that_ends_well_has_nothing_to_complain_of_and_tells_each_step() -> None:
    told = aftermath(story())
    assert broken(told) == []
    lines = dict(told.lines())
    assert "day 315: confidence of version 2 fell from 0.250 to 0.180 (days 313 to 315" in lines["drift"]
    assert "version 1 answered 0.50 s after the alarm" in lines["response"]
    assert lines["candidate"].startswith("version 3, 9 s later")
    assert "510 answers for 50% of the customers, 0 errors, 90.0% as version 1 says" in lines["trial"]
    assert lines["AUC before"] == "version 2: 0.750 on 100 purchases, up to the alarm, as it answered"
    assert lines["AUC after"] == "version 3: 0.760 on 9 purchases, as it answered alone"
    assert "on the very same purchases would have had: version 1 0.700, version 2 0.750" in lines[""]


def test_each_step_that_did_not_happen_is_a_fault() -> None:
    assert broken(aftermath(story(), fallback=12_500)) == ["its fallback answered within 2 s of the alarm"]
    assert broken(aftermath(story(), better=0.75)) == [
        "its AUC is better than that of version 2 on the very same purchases"
    ]
    assert len(broken(aftermath(story(), apart=0.1))) == 1
    nothing = Aftermath(Ledger(EVENTS), Story("2"), {}, 0.0, None)
    assert len(broken(nothing)) == 5
    assert dict(nothing.lines()) == {"drift": "none was seen of version 2"}


def test_a_canary_that_is_rolled_back_is_no_promotion() -> None:
    told = Story("2")
    told.deployed(deployment(4, "1", "trainer", canary="3"), 1)
    told.deployed(deployment(5, "1", "limits"), 2)
    assert told.retrained == "3"
    assert told.promoted is None


async def test_a_wait_ends_with_what_happens_or_with_a_refusal() -> None:
    told = Story("2")
    assert not await told.until(lambda: told.alarm is not None, 0.01)
    told.alerted(alert("drift", f"{NAME}@2"), 1)
    assert await told.until(lambda: told.alarm is not None, 0.01)


def test_scores_of_a_row_are_those_of_the_labels_column(tmp_path: Path, data: Known) -> None:
    model = candidates()["1"]().fit(data.x, data.returned)
    folder = made(model, "1", Period(data.x, data.returned), "a test", ModelStore(str(tmp_path)))
    np.testing.assert_allclose(scores(folder, data.x), model.predict_proba(data.x)[:, 1], atol=1e-5)
