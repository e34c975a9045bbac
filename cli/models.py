"""`faust -A app models`: what the store holds, and what is deployed of it; most of its actions change that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from faust.cli.base import argument, option

from cli.adding import add, index, precise
from cli.command import OperatorCommand, offering
from cli.comparing import compare
from cli.past import past
from cli.reach import reach
from cli.reading import newest
from cli.report import Report, columns, moment
from cli.requesting import action_of, request
from core.errors import ModelNotFoundError, SettingsError, UsageError
from core.events import Deployment
from core.topics import DEPLOYMENTS, MODEL_STATUS
from models.adding import Wishes
from models.limits import LIMITS, shown
from models.precision import FP32
from models.status import Late, Status, read
from models.store import ModelStore

SAID: Final = ("author", "reason", "based_on", "precision", "max_error", "max_latency")
"""Options that a request carries as they are."""
REQUESTS: Final = ("promote", "canary", "shadow", "rollback", "freeze", "unfreeze", "unload", "backfill")
DRIFT: Final = ("response", "fallback", "preset", "low_alerts")
"""What a promotion may declare for a drift."""
VERSIONLESS: Final = ("freeze", "unfreeze")
DEPLOYED: Final = ("deployed", "canary", "shadow", "frozen", "revision", "since", "author")


class Models(OperatorCommand):
    """Show every model: the versions in the store, and what the deployments topic says is live.

    \b
    models list                     the same
    models show NAME                its manifests and deployment, and the versions live on each worker
    models compare NAME             how its versions do beside each other, and what the canary's limits want
    models promote NAME [VERSION]   make a version the active one; by default the canary
    models canary NAME [VERSION] --share 0.1 [--limit max_error=0.01 ...]
                                    let it answer for a share of the sessions; without VERSION the canary grows
    models shadow NAME VERSION      let it compute beside the active one, for comparison
    models rollback NAME [VERSION]  end the canary; without one go back to the version before
    models freeze NAME              refuse promotions and canaries, until
    models unfreeze NAME --author WHO
    models unload NAME [VERSION]    end a shadow, the canary, or with the active version the whole model
    models backfill NAME [VERSION] [--since TIME]
                                    fill the session features that began later than the sessions from the log, by
                                    default of all deployed versions and from the oldest observation that there is
    models add FILE_OR_FOLDER       put an .onnx file, an MLflow folder, a folder with manifest.json or a pickled
                                    estimator into the store, checked (docs/models.md)
    models precisions FOLDER        make fp16 and int8 files in a folder that isn't in the store yet, and measure them
    models index                    write the store's index.json anew

    Whatever changes something waits for the answer of the model's judge, a worker.
    """

    options = offering(
        argument("action", required=False),
        argument("name", required=False),
        argument("version", required=False),
        option("--share", type=float, default=None, help="canary: of the sessions, above 0 and up to 1."),
        option(
            "--limit",
            multiple=True,
            metavar="NAME=VALUE",
            help=f"canary: {', '.join(LIMITS)}; `none` takes those away that there are. Without, they stay.",
        ),
        option(
            "--response", default=None, help="promote: what a drift does by itself: freeze,fallback,retrain; or none."
        ),
        option("--fallback", default=None, help="promote: the version that takes over when this one drifts."),
        option(
            "--preset", default=None, help="promote: what counts as a drift: default, or classic (quicker, errs more)."
        ),
        option(
            "--low-alerts", type=float, default=None, help="promote: unsure answers told singly, a minute; 0: none."
        ),
        option(
            "--precision",
            default=None,
            help="promote, canary, shadow, rollback: which of the version's files computes. add, precisions: those to "
            "make, fp16,int8; precisions makes both by default.",
        ),
        option(
            "--max-error",
            type=float,
            default=None,
            help="In place of --precision: the quickest whose scores are so close to fp32's.",
        ),
        option(
            "--max-latency",
            type=float,
            default=None,
            help="In place of --precision: the most exact that needed so many seconds for 64 rows where it was made.",
        ),
        option(
            "--rows", default=None, metavar="FILE", help="add, precisions: JSON lines, fields and values, to measure."
        ),
        option(
            "--since",
            default=None,
            help="backfill: from this time on (2026-01-31T12:00Z), by when it was written.",
            metavar="TIME",
        ),
        option("--author", default=None, help="Changes: who asks for it."),
        option("--reason", default=None, help="Changes: why."),
        option("--based-on", type=int, default=None, help="Changes: refuse unless this is the model's revision."),
        option("--name", "new_name", default=None, help="add: the model's name. Default: the file's."),
        option("--version", "new_version", default=None, help="add: default: one more than the highest in the store."),
        option("--fields", multiple=True, help="add: a,b,c fill the columns in order; or INPUT=a,b for each input."),
        option("--labels", default=None, help="add: no,yes: a classifier's labels, in order."),
        option("--output", default=None, help="add: the output with the scores, where several could be."),
        option("--decision", default=None, help="add: LABEL>0.85, or value>10: what makes a prediction a yes."),
        option("--reference", default=None, help="add: a CSV file with a sample of the fields, for drift to be seen."),
        option(
            "--reranker",
            is_flag=True,
            default=False,
            help="add: a text classifier with one label scores pairs of question and passage, where its folder doesn't "
            "say so.",
        ),
        option("--trust-pickle", is_flag=True, default=False, help="add: load a pickle, which runs the code in it."),
        option("--dry-run", is_flag=True, default=False, help="add: show what would be made, and publish nothing."),
    )

    async def answer(
        self, action: str | None = None, name: str | None = None, version: str | None = None, **options: Any
    ) -> Report:
        """Raises UsageError for another action, what the action raises else."""
        match action, name, version:
            case (None | "list", None, None):
                return await self._listed()
            case ("show", str(), None):
                return await self._shown(name)
            case ("compare", str(), None):
                return await compare(await reach(self.ours.settings), name)
            case (str(), str(), _) if action in REQUESTS and not (version and action in VERSIONLESS):
                return await self._requested(action, name, version, options)
            case ("add", str(), None):
                store, wishes, rows = self.ours.engine.models.store, _wishes(options), _rows(options)
                made, dry = _several(options["precision"]), options["dry_run"]
                work = partial(add, store, Path(name), wishes, precisions=made, rows=rows, dry_run=dry)
                return await asyncio.to_thread(work)
            case ("precisions", str(), None):
                made = _several(options["precision"])
                store, rows = self.ours.engine.models.store, _rows(options)
                return await asyncio.to_thread(precise, store, Path(name), made, rows)
            case ("index", None, None):
                return await asyncio.to_thread(index, self.ours.engine.models.store)
        raise UsageError(
            "there is `models list`, `models show|compare|freeze|unfreeze NAME`, `models shadow NAME VERSION`, "
            "`models promote|canary|rollback|unload|backfill NAME [VERSION]`, `models add FILE_OR_FOLDER`, "
            "`models precisions FOLDER` and `models index`"
        )

    async def _requested(self, action: str, name: str, version: str | None, options: dict[str, Any]) -> Report:
        limits, share = options["limit"], options["share"]
        said = {name: options[name] for name in SAID}
        if action != "canary" and (limits or share is not None):
            raise UsageError(f"--share and --limit are a canary's: `models {action}` takes neither")
        drift = {name: options[name] for name in DRIFT if options[name] is not None}
        if drift and action != "promote":
            raise UsageError(f"{_as_options(drift)} of a promotion: `models {action}` takes none of it")
        said |= drift
        if options["since"] is not None and action != "backfill":
            raise UsageError(f"--since is a backfill's: `models {action}` takes none")
        if options["since"] is not None:
            said["since"] = int(past(options["since"], "--since").timestamp() * 1e3)
        asked = action_of(action, name, version, limits, share=share, **said)
        return await request(await reach(self.ours.settings), name, asked)

    async def _shown(self, name: str) -> Report:
        store = self.ours.engine.models.store
        connection = await reach(self.ours.settings)
        deployment = (await newest(connection, DEPLOYMENTS)).get(name)
        status = await newest(connection, MODEL_STATUS)
        versions = await asyncio.to_thread(store.versions, name)
        if not versions and deployment is None:
            raise ModelNotFoundError(f"there is no model {name!r}, neither in {store.url} nor among the deployments")
        manifests = {
            version: (await asyncio.to_thread(store.manifest, name, version)).model_dump(
                mode="json", exclude_none=True, exclude={"golden", "reference_confidence", "features"}
            )
            for version in versions
        }
        live = {worker: one.models[name] for worker, one in status.items() if name in one.models}
        document = {
            "name": name,
            "deployment": deployment and deployment.model_dump(mode="json", exclude_none=True),
            "workers": live,
            "versions": manifests,
        }
        return Report(document, [*_about(deployment, live), "", *_versions(manifests)])

    async def _listed(self) -> Report:
        """The store is read without a broker; deployments aren't."""
        settings = self.ours.settings
        store = self.ours.engine.models.store
        stored = await asyncio.to_thread(_stored, store)
        deployed: dict[str, Deployment] = {}
        error: str | None = None
        try:
            deployed = await newest(await reach(settings), DEPLOYMENTS)
        except SettingsError as unreachable:
            error = str(unreachable)
        rows = [
            {
                "name": name,
                "store": stored.get(name, []),
                "deployment": None
                if name not in deployed
                else deployed[name].model_dump(mode="json", exclude_none=True),
            }
            for name in sorted({*stored, *deployed})
        ]
        document: dict[str, Any] = {"model_store": store.url, "models": rows}
        lines = columns(
            ("name", "in the store", *DEPLOYED),
            [
                (name, ", ".join(stored.get(name, [])) or "-", *_deployment(deployed.get(name)))
                for name in sorted({*stored, *deployed})
            ],
        )
        if not rows:
            lines = [f"The store {store.url} is empty, and nothing is deployed."]
        if error is not None:
            document["error"] = error
            lines += ["", error]
        return Report(document, lines, ok=error is None)


def _as_options(given: dict[str, Any]) -> str:
    named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
    return f"{named} {'is' if len(given) == 1 else 'are'}"


def _wishes(options: dict[str, Any]) -> Wishes:
    labels = options["labels"] or ""
    return Wishes(
        name=options["new_name"],
        version=options["new_version"],
        fields=options["fields"],
        labels=tuple(word for word in map(str.strip, labels.split(",")) if word),
        output=options["output"],
        decision=options["decision"],
        reference=Path(options["reference"]) if options["reference"] else None,
        reranker=options["reranker"],
        trust_pickle=options["trust_pickle"],
    )


def _several(names: str | None) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, (names or "").split(","))))


def _rows(options: dict[str, Any]) -> Path | None:
    return None if options["rows"] is None else Path(options["rows"])


def _about(deployment: Deployment | None, live: dict[str, dict[str, Any]]) -> list[str]:
    lines = columns(DEPLOYED, [_deployment(deployment)])
    if deployment is not None:
        more = {
            "previous": deployment.previous,
            "fallback": deployment.fallback,
            "response to a drift": deployment.response,
            "precision": ", ".join(f"{version} in {name}" for version, name in deployment.precision.items()),
            "limits": shown(deployment.limits),
            "reason": deployment.reason,
        }
        lines += [f"{name}: {value}" for name, value in more.items() if value]
    workers = [_on_worker(worker, read(one) or Status(revision=0)) for worker, one in sorted(live.items())]
    lines += ["", *columns(("worker", "active", "canary", "shadow", "revision", "state"), workers)]
    told = [status for status in map(read, live.values()) if status is not None]
    notes = [*_late(told), *_filling(told)]
    return [*lines, *(["", *notes] if notes else [])]


def _filling(told: Iterable[Status]) -> list[str]:
    """How far the newest backfill is, all workers together."""
    fillings = [status.backfill for status in told if status.backfill is not None]
    newest = max((one.revision for one in fillings), default=0)
    theirs = [one for one in fillings if one.revision == newest]
    partitions = sum(one.partitions for one in theirs)
    if not partitions:
        return []
    done, left = sum(one.done for one in theirs), sum(one.left for one in theirs)
    share = sum(one.share * one.partitions for one in theirs) / partitions
    since = max((one.since for one in theirs if one.since), default=None)
    said = f"backfill of revision {newest}: "
    said += (
        "done" if done == partitions else f"{share:.1%}, {done} of {partitions} partitions done, {left:,} events to go"
    )
    if eta := max((one.eta_s or 0 for one in theirs), default=0):
        said += f", about {eta:.0f} s"
    said += f"; it reaches back to {moment(since)}" if since else ""
    return [said, *(f"  {one.error}" for one in theirs if one.error)]


def _late(told: Iterable[Status]) -> list[str]:
    """A line a version and feature that its sessions don't know from their beginning on, all workers together."""
    found: dict[tuple[str, str], Late] = {}
    for status in told:
        for one in filter(None, (status.active, status.canary, *status.shadow)):
            for name, late in one.late_features.items():
                both = found.setdefault((one.version, name), Late())
                both.since = max(both.since or 0, late.since or 0) or None
                both.waiting += late.waiting
    lines = []
    for (version, name), late in sorted(found.items()):
        since = f"counts from {moment(late.since)} on" if late.since else "has not begun"
        waiting = f"; partitions that wait for their next event: {late.waiting}" if late.waiting else ""
        lines.append(f"{version}: {name} {since}, later than the sessions themselves{waiting}")
    return lines


def _on_worker(worker: str, status: Status) -> tuple[object, ...]:
    state = "live" if status.version else "nothing live"
    if status.loading is not None:
        state = f"loading {status.loading.version} ({status.loading.stage})"
    if status.held:
        state += ", events wait"
    if status.draining:
        state += f", {', '.join(status.draining)} draining"
    return (
        worker,
        status.version or "-",
        status.canary.version if status.canary else "-",
        ", ".join(one.version for one in status.shadow) or "-",
        status.revision or "-",
        status.error or state,
    )


def _versions(manifests: dict[str, dict[str, Any]]) -> list[str]:
    rows = [
        (
            version,
            one["kind"],
            ", ".join(one.get("labels", ())) or "-",
            ", ".join({FP32: None} | one.get("precisions", {})),
            one.get("licence", "-"),
            one.get("made_by", "-"),
        )
        for version, one in manifests.items()
    ]
    return columns(("in the store", "kind", "labels", "precisions", "licence", "made by"), rows)


def _stored(store: ModelStore) -> dict[str, list[str]]:
    return {name: store.versions(name) for name in store.models()}


def _deployment(one: Deployment | None) -> tuple[object, ...]:
    if one is None:
        return ("-",) * len(DEPLOYED)
    return (
        one.active or "-",
        f"{one.canary.version} ({one.canary.share:.4g})" if one.canary else "-",
        ", ".join(one.shadow) or "-",
        "yes" if one.frozen else "-",
        one.revision,
        moment(one.since),
        one.author or "-",
    )
