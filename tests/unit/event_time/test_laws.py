"""Neither order within the lateness, nor batches, nor crashes change what comes out."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.testing import InMemory
from tests.unit.event_time.following import (
    END,
    LATENESS,
    START,
    STEPS,
    Step,
    alarms,
    corrections,
    left,
    minutes,
    overlapping,
    run,
    said,
    visits,
)

Ordered = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, LATENESS)), max_size=25)
"""Session, time since the event before, and what it is held up on its way: at most the allowed lateness."""
Plan = st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["go on", "commit", "crash"])), max_size=6)
"""Sizes of batches, and what follows each."""


def steps(ordered: list[tuple[str, int, int]], actions: str) -> tuple[list[Step], list[Step]]:
    """In the order of their time, and in that of their arrival; the last one closes everything."""
    ts, made = START, []
    for number, (session, gap, delay) in enumerate(ordered):
        ts += gap
        action = actions.split()[number % len(actions.split())]
        made.append((ts + delay, Step(session, ts, number, action)))
    arrived = sorted(made, key=lambda one: one[0])
    end = Step("end", END)
    return [step for _, step in made] + [end], [step for _, step in arrived] + [end]


def drive(arrived: list[Step], plan: list[tuple[int, str]]) -> InMemory:
    """Works on what arrived, in batches as planned, with commits and crashes between them."""

    async def body(trial: InMemory) -> None:
        trial.publish(STEPS, arrived)
        for size, then in plan:
            await trial.read(STEPS, size)
            if then == "commit":
                await trial.commit()
            elif then == "crash":
                await trial.crash()
        await trial.work(STEPS)

    return run(body)


def recount(ordered: list[Step]) -> list[Any]:
    """The windows of steps, by hand."""
    found: list[Any] = []
    for name, size, slide in (("test-tumbling", 50, 50), ("test-sliding", 50, 20)):
        values: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for step in ordered:
            start = START - 200 - (START - 200) % slide
            while start <= step.ts:
                if step.ts < start + size:
                    values[step.session, start].append(step.value)
                start += slide
        found += [[name, key, start, start + size, sorted(value)] for (key, start), value in values.items()]
    for session in "abc":
        runs: list[list[Step]] = []
        for step in (step for step in ordered if step.session == session):
            if runs and step.ts < runs[-1][-1].ts + 30:
                runs[-1].append(step)
            else:
                runs.append([step])
        found += [
            ["test-session", session, run[0].ts, run[-1].ts + 30, sorted(step.value for step in run)] for run in runs
        ]
    return sorted(found)


def windows_of_shuffled_events_are_those_of_ordered_ones(
    ordered: list[tuple[str, int, int]], plan: list[tuple[int, str]]
) -> None:
    in_order, arrived = steps(ordered, "window")
    trial = drive(arrived, plan)
    found = said(trial, "test-tumbling", "test-sliding", "test-session")
    assert sorted(found) == recount(in_order[:-1])
    assert [one[3] for one in found] == sorted(one[3] for one in found), "in the order of their ends"
    assert trial.late() == []
    assert not left(trial, minutes, overlapping, visits)


def pairs(ordered: list[Step]) -> list[Any]:
    """Matches and timeouts of steps, by hand: the newest free first half before each second one."""
    found: list[Any] = []
    for session in "abc":
        free: list[Step] = []
        own = [step for step in ordered if step.session == session]
        for step in sorted(own, key=lambda step: (step.ts, step.action == "then", msgspec.json.encode(step.value))):
            if step.action == "first":
                free.append(step)
                continue
            near = [first for first in free if first.ts >= step.ts - 40]
            if near:
                free.remove(near[-1])
                found.append(["match", session, near[-1].value, str(step.value)])
        found += [["timeout", session, first.value] for first in free]
    return sorted(found)


def a_pattern_finds_the_same_pairs_in_whatever_order_they_arrive(
    ordered: list[tuple[str, int, int]], plan: list[tuple[int, str]]
) -> None:
    in_order, arrived = steps(ordered, "first then first then then")
    trial = drive(arrived, plan)
    assert sorted(said(trial, "match", "timeout")) == pairs(in_order)
    assert not left(trial, corrections)


Steps = st.lists(
    st.builds(
        lambda session, ts, action, at: Step(session, START + ts, ts, action, START + at),
        st.sampled_from(["a", "b", "c", "again"]),
        st.integers(0, 150),
        st.sampled_from(["set", "set", "set", "cancel", ""]),
        st.integers(0, 200),
    ),
    max_size=25,
)


def told(arrived: list[Step]) -> tuple[list[Any], list[Step]]:
    """What one event at a time leads to, in order; and who is late."""
    out: list[Any] = []
    late: list[Step] = []
    due: dict[str, int] = {}
    rung: defaultdict[str, int] = defaultdict(int)
    watermark = -1
    for step in arrived:
        if step.ts < watermark:
            late.append(step)
            continue
        if step.action == "set":
            due[step.session] = step.at
        elif step.action == "cancel":
            due.pop(step.session, None)
        out.append(["seen", step.session, step.value])
        watermark = max(watermark, step.ts - LATENESS)
        while due and min(due.values()) <= watermark:
            at, key = min((at, key) for key, at in due.items())
            del due[key]
            rung[key] += 1
            out.append(["ring", key, at, rung[key]])
            if key == "again" and at < START + 100:
                due[key] = at + 7
    return out, late


def timers_fire_once_and_in_order_whatever_the_batches_with_crashes_between(
    arrived: list[Step], plan: list[tuple[int, str]]
) -> None:
    arrived = [*arrived, Step("end", END)]
    out, late = told(arrived)
    trial = drive(arrived, plan)
    assert said(trial) == out
    assert [msgspec.json.decode(one.value, type=Step) for one in trial.late()] == late
    assert not left(trial, alarms)


LAWS: Final = [
    pytest.param(windows_of_shuffled_events_are_those_of_ordered_ones, Ordered, id="windows"),
    pytest.param(a_pattern_finds_the_same_pairs_in_whatever_order_they_arrive, Ordered, id="pattern"),
    pytest.param(timers_fire_once_and_in_order_whatever_the_batches_with_crashes_between, Steps, id="timers"),
]
MANY: Final = pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(900)])


@pytest.mark.parametrize("examples", [15, MANY])
@pytest.mark.parametrize(("law", "events"), LAWS)
def test_neither_order_nor_batches_nor_crashes_change_what_comes_out(law: Any, events: Any, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(events, Plan)
    def check(happens: Any, plan: list[tuple[int, str]]) -> None:
        law(happens, plan)

    check()
