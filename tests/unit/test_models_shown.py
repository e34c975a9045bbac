"""What `models show` says of features that began late, and of their backfill."""

from __future__ import annotations

from cli.models import _about
from core.events import Deployment

DEPLOYED = Deployment(model="churn", revision=3, active="2", since=0)
MINUTE = 60_000


def worker(**more: object) -> dict[str, object]:
    return {"version": "2", "role": "active", "since": 1, "sha256": "x", "figures": {}, "revision": 3} | more


def shown(**workers: dict[str, object]) -> str:
    return "\n".join(_about(DEPLOYED, workers))


def test_a_feature_counts_from_where_the_last_partition_began() -> None:
    a = worker(late_features={"session.mean.x": {"since": MINUTE}})
    b = worker(late_features={"session.mean.x": {"since": 2 * MINUTE, "waiting": 1}, "session.max.x": {"waiting": 2}})
    said = shown(a=a, b=b)
    assert "2: session.mean.x counts from 1970-01-01 00:02:00Z on, later than the sessions themselves; part" in said
    assert "2: session.max.x has not begun, later" in said
    assert "partitions that wait for their next event: 2" in said
    assert "later than" not in shown(a=worker())


def test_a_backfill_is_as_far_as_all_workers_together() -> None:
    a = worker(backfill={"revision": 3, "partitions": 2, "done": 2, "share": 1.0, "since": MINUTE})
    b = worker(backfill={"revision": 3, "partitions": 2, "share": 0.5, "left": 1200, "eta_s": 7.2, "error": "no READ"})
    said = shown(a=a, b=b)
    assert "backfill of revision 3: 75.0%, 2 of 4 partitions done, 1,200 events to go, about 7 s; it reaches" in said
    assert "  no READ" in said
    assert "backfill of revision 3: done; it reaches back to 1970-01-01 00:01:00Z" in shown(a=a)
    assert "backfill" not in shown(a=worker())
