"""`faust -A app models canary|shadow|rollback|...`: the judge's word on each, and what compare makes of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cli.comparing import compare
from cli.report import Report
from cli.requesting import action_of, request
from core.errors import ModelNotFoundError, RequestRefusedError, UsageError
from core.settings import Settings
from engine.connection import connect
from tests import tally
from tests.kafka import EMBEDDED_LATER, Broker
from tests.rig import rig_on
from tests.worker import until


@EMBEDDED_LATER
async def test_a_version_is_tried_compared_and_taken_back_again(broker: Broker, tmp_path: Path) -> None:
    with rig_on(broker, tmp_path) as rig:
        for version in ("1", "2", "3"):
            tally.publish(rig.store, version)
        worker = rig.worker("a").start()
        rig.deploy("1")
        ours = Settings(broker=broker.url, topic_prefix=rig.prefix, app_id=f"{rig.prefix}app", partitions=4)
        connection = await connect(ours, broker.url)

        async def models(action: str, version: str | None = None, **given: Any) -> Report:
            return await request(connection, tally.NAME, action_of(action, tally.NAME, version, **given))

        limits = ["min_events=1e6", "min_agreement=0.9"]
        tried = await models("canary", "3", share=0.5, limits=limits, author="ann", reason="newer", based_on=1)
        assert tried.document["deployment"]["canary"] == {"version": "3", "share": 0.5}
        assert tried.lines[0].startswith(
            "tally is at revision 2: 1 answers, 3 for 50 % of the sessions. Workers follow"
        )
        assert "min_events 1e+06, min_agreement 0.9" in tried.lines[1]
        assert (await models("canary", share=0.6)).document["deployment"]["canary"]["share"] == 0.6
        shadowed = await models("shadow", "2")
        assert "1 answers, 3 for 60 % of the sessions, 2 in its shadow" in shadowed.lines[0]
        until(lambda: "shadow" in status(worker), 20, what="the shadow is loaded", alive=[worker])

        rig.sender(sessions=300, rate=600).send(600)
        rig.wait_predictions()
        until(lambda: compared(worker) == 600, 20, what="all is compared", alive=[worker])
        found = await told(connection, answers=600)
        sides = {side["version"]: side for side in found.document["sides"]}
        assert [(side["role"], side["share"]) for side in sides.values()] == [
            ("active", 0.4),
            ("canary", 0.6),
            ("shadow", None),
        ]
        assert sides["3"]["agreement"] == 1.0
        text = "\n".join(found.lines)
        assert "Before it is promoted: min_events is 1e+06, it has " in text
        assert "min_agreement 0.9: it has 1, holds" in text

        assert (await models("freeze", reason="a holiday")).lines[0].count(", frozen") == 1
        with pytest.raises(RequestRefusedError, match=r"tally is frozen .*\(a holiday\)"):
            await models("promote", "3")
        with pytest.raises(RequestRefusedError, match="say who"):
            await models("unfreeze")
        await models("unfreeze", author="ann")
        filling = await models("backfill", since=1000)
        assert filling.document["deployment"]["backfill"]["since"] == 1000
        assert "session.mean.f0, session.sum.f0 is filled" in filling.lines[-1]
        until(
            lambda: status(worker).get("backfill", {}).get("done") == 4, 20, what="nothing began late", alive=[worker]
        )
        gone = await models("rollback")
        assert "canary" not in gone.document["deployment"]
        await models("unload", "2")
        ended = await models("unload")
        assert "no version answers" in ended.lines[0]
        until(lambda: "version" not in status(worker), 20, what="the model is unloaded", alive=[worker])
        with pytest.raises(ModelNotFoundError, match="nothing is deployed of a model 'nobody'"):
            await compare(connection, "nobody")
        rig.assert_exact()


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        (["max_error"], "give each limit once"),
        (["max_error=1", "max_error=0.5"], "give each limit once"),
        (["none", "max_error=1"], "give each limit once"),
        (["max_error=much"], r"limits\.max_error: Input should be a valid number"),
    ],
)
def test_limits_that_are_none_are_refused_before_anything_is_asked(limits: list[str], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        action_of("canary", "m", "2", limits, share=0.1)


def test_what_can_not_be_asked_for_is_refused() -> None:
    with pytest.raises(UsageError, match="share: Input should be less than or equal to 1"):
        action_of("canary", "m", "2", share=10.0)
    with pytest.raises(UsageError, match="version: String should match pattern"):
        action_of("shadow", "m", "../2")
    assert action_of("canary", "m", "2", ["none"], share=0.1).limits == {}
    assert action_of("canary", "m", "2", share=0.1).limits is None


async def told(connection: Any, answers: int) -> Report:
    """What compare says once the worker has told of that many answers of those who answer."""
    async with asyncio.timeout(20):
        while True:
            found = await compare(connection, tally.NAME)
            sides = [side for side in found.document["sides"] if side["role"] != "shadow"]
            if sum(side["figures"].get("answers", 0) for side in sides) == answers:
                return found


def status(worker: Any) -> dict[str, Any]:
    return dict(worker.get("/models").json()["models"][tally.NAME])


def compared(worker: Any) -> int:
    """Events in which the shadow and the active version were asked, and canary and active."""
    shown = status(worker)
    return sum(one["figures"].get("compared", 0) for one in (*shown["shadow"], shown["canary"]))
