"""`faust -A app models compare NAME`: how the versions of a model do beside each other, as workers tell it."""

from __future__ import annotations

from typing import Any

import msgspec

from cli.reading import newest
from cli.report import Report, columns, moment
from core.errors import ModelNotFoundError
from core.events import Deployment, ModelStatus
from core.topics import DEPLOYMENTS, MODEL_STATUS
from engine.connection import Connection
from models.comparison import Comparison, Side
from models.comparison import compare as compared
from models.limits import WAITED, Figures, Verdict, judged, standings, wanting
from models.status import read

HEADS = (
    "version", "role", "share", "answers", "errors", "confidence", "low", "compared", "agree", "dropped", "p99",
    "since", "workers",
)  # fmt: skip
LABELLED = ("labelled", "right", "loss")
"""Where labels have come."""
NONE = "-"


async def compare(connection: Connection, model: str) -> Report:
    """Raises ModelNotFoundError where nobody has heard of the model."""
    deployment = (await newest(connection, DEPLOYMENTS)).get(model)
    statuses: dict[str, ModelStatus] = await newest(connection, MODEL_STATUS)
    told = {
        worker: found for worker, status in statuses.items() if (found := read(status.models.get(model))) is not None
    }
    if deployment is None:
        raise ModelNotFoundError(f"nothing is deployed of a model {model!r}: `faust -A app models` shows what is")
    comparison = compared(told) if told else None
    limits = _limits(deployment, comparison)
    document: dict[str, Any] = {
        "model": model,
        "revision": deployment.revision,
        "frozen": deployment.frozen,
        "sides": msgspec.to_builtins(comparison.sides) if comparison else [],
        "behind": comparison.behind if comparison else [],
        "limits": limits,
        "told": {worker: statuses[worker].ts for worker in told},
    }
    return Report(document, [*_table(deployment, comparison), *_trial(deployment, limits)])


def _limits(deployment: Deployment, comparison: Comparison | None) -> dict[str, Any] | None:
    """Where the canary stands with its limits; None: there is no canary."""
    if deployment.canary is None:
        return None
    side = comparison.canary(deployment.canary.version) if comparison else None
    figures = side.figures if side and comparison and comparison.revision == deployment.revision else Figures()
    judgement = judged(deployment.limits, figures)
    return {
        "standings": [one._asdict() for one in standings(deployment.limits, figures)],
        "verdict": judgement and judgement.verdict.value,
        "why": judgement and judgement.why,
        "wanting": wanting(deployment.limits, figures) if deployment.limits else [],
    }


def _table(deployment: Deployment, comparison: Comparison | None) -> list[str]:
    frozen = ", frozen" if deployment.frozen else ""
    lines = [f"{deployment.model} at revision {deployment.revision}{frozen}, since {moment(deployment.since)}", ""]
    if comparison is None:
        return [*lines, "No worker tells anything of it."]
    if not comparison.sides:
        return [*lines, "No version of it is live on any worker."]
    if any(side.figures.labelled for side in comparison.sides):
        lines += columns((*HEADS, *LABELLED), [(*_row(side), *_labelled(side)) for side in comparison.sides])
    else:
        lines += columns(HEADS, map(_row, comparison.sides))
    if comparison.revision < deployment.revision:
        lines.append(f"No worker follows the deployment yet: these are the figures of revision {comparison.revision}.")
    if all(side.role == "active" for side in comparison.sides):
        lines.append("Workers tell figures while a version is on trial; those of this moment are at /overview.")
    if comparison.behind:
        lines.append(f"Not counted, since they follow an older revision: {', '.join(comparison.behind)}.")
    return lines


def _row(side: Side) -> tuple[str, ...]:
    figures = side.figures
    trial = side.role != "active"
    return (
        side.version,
        side.role,
        _share(side.share),
        f"{figures.answers:,}",
        _share(side.error),
        NONE if side.confidence is None else f"{side.confidence:.3f}",
        _share(side.low),
        f"{figures.compared:,}" if trial else NONE,
        _share(side.agreement),
        f"{figures.dropped:,}" if trial else NONE,
        f"{1e3 * figures.p99_s:.3g} ms" if figures.answers else NONE,
        moment(side.since),
        ", ".join(side.on),
    )


def _labelled(side: Side) -> tuple[str, ...]:
    loss = NONE if side.loss is None else f"{side.loss:.4g}"
    return f"{side.figures.labelled:,}", _share(side.accuracy), loss


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f} %"


def _trial(deployment: Deployment, limits: dict[str, Any] | None) -> list[str]:
    """What the limits of the canary say, and what they still want."""
    if deployment.canary is None or limits is None:
        return []
    if not deployment.limits:
        return ["", f"The canary {deployment.canary.version} has no limits: it stays until somebody decides."]
    lines = ["", f"Limits of the canary {deployment.canary.version}:"]
    for one in limits["standings"]:
        has = "nothing yet" if one["has"] is None else f"{one['has']:.4g}"
        state = {
            None: "too early to tell",
            True: "holds",
            False: "not yet" if one["limit"] in WAITED else "broken",
        }
        lines.append(f"  {one['limit']} {one['declared']:g}: it has {has}, {state[one['holds']]}")
    match limits["verdict"]:
        case Verdict.ROLLBACK:
            lines.append("It is being rolled back.")
        case Verdict.PROMOTE if deployment.frozen:
            lines.append("It would be promoted, but the model is frozen.")
        case Verdict.PROMOTE:
            lines.append("It is being promoted.")
        case _:
            lines += [f"Before it is promoted: {one}." for one in limits["wanting"]]
    return lines
