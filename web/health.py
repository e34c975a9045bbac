"""Alive, and ready: the second in words, since a worker that isn't ready is what people look at first."""

from __future__ import annotations

import msgspec
from aiohttp import web

from engine.app import App
from web import answers
from web.operations import Operation, operation


class Live(msgspec.Struct, omit_defaults=True):
    """GET /health/live."""

    live: bool
    reason: str | None = None


class Ready(msgspec.Struct, omit_defaults=True):
    """GET /health/ready."""

    ready: bool
    reasons: list[str]
    """Everything that keeps this worker from answering events."""
    warnings: list[str] = []
    """What is wrong although it answers them."""


class Health:
    """What supervisors and load balancers ask. Tells states, never data."""

    def __init__(self, app: App) -> None:
        self._app = app

    def routes(self) -> list[web.RouteDef]:
        """GET /health/live and /health/ready."""
        return [web.get("/health/live", self.live), web.get("/health/ready", self.ready)]

    @operation(Operation(gives=Live, also={503: Live}))
    async def live(self, request: web.Request) -> web.Response:
        """200 as long as the event loop turns and the worker isn't ending because of an error."""
        dying = self._app.engine.dying
        if dying is not None:
            return answers.json(Live(False, _dying(dying)), 503)
        return answers.json(Live(True))

    @operation(Operation(gives=Ready, also={503: Ready}))
    async def ready(self, request: web.Request) -> web.Response:
        """200 once this worker takes its share of the events; else 503 and why not."""
        reasons = self.reasons()
        return answers.json(Ready(not reasons, reasons, self.warnings()), 503 if reasons else 200)

    def reasons(self) -> list[str]:
        """Everything that keeps this worker from answering events; empty when nothing does."""
        engine = self._app.engine
        if engine.dying is not None:
            return [_dying(engine.dying)]
        return [*self._models(), *self._partitions()]

    def warnings(self) -> list[str]:
        """What is wrong although events are answered: a version that failed to load beside the one that is live."""
        models = self._app.engine.models
        fallback = [f"models run on the CPU: {models.device.fallback}"] if models.device.fallback else []
        return fallback + [
            f"{name} stays at version {status['version']}: {status['error']}"
            for name, status in models.status().items()
            if "error" in status and "version" in status
        ]

    def _models(self) -> list[str]:
        models = self._app.engine.models
        if models.away is not None:
            return [f"the model store is waited for: {models.away}"]
        if not self._app.engine.ready.is_set() and not models.deployed():
            return ["the deployments have not been read yet"]
        if not models.deployed():
            refused = [f"the last request for {name} was refused: {why}" for name, why in models.refused.items()]
            return ['no model is live: publish {"active": VERSION} to control, keyed by the model\'s name', *refused]
        found = models.status()
        return [
            f"model {name} is not live here: {found[name].get('error') or 'its version is being loaded'}"
            for name in models.deployed()
            if "version" not in found[name]
        ]

    def _partitions(self) -> list[str]:
        app, engine = self._app, self._app.engine
        if not engine.started_consuming:
            return ["the broker and its topics are waited for"]
        if not engine.tasks and (app.rebalancing or not app.consumer_generation_id):
            return ["the group has not assigned partitions to this worker yet"]
        return [
            f"partition {n} is not open: {task.reason}" for n, task in sorted(engine.tasks.items()) if not task.open
        ]


def _dying(error: BaseException) -> str:
    return f"the worker is ending: {type(error).__name__}"
