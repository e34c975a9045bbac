"""model -> its accepted deployment. Written by the judge of control requests alone, in the model's own partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from core.errors import ModelError, RequestRefusedError
from core.events import RESPONSES, Action, Backfill, Canary, Deployment
from engine.table import Table
from models.limits import unknown
from models.precision import FP32, Precision, chosen, named

Offers = Callable[[str], Mapping[str, Precision]]
"""Version -> its precisions; it is asked where a request is about them."""

PRECISE: Final = ("deploy", "promote", "canary", "shadow", "rollback")
"""Actions that a precision may be asked for with."""
MOST_REVISION: Final = 10**12
"""No model has as many; what says so is not what its judge has written."""
MAX_SHADOWS: Final = 3
"""Each one computes every event once more."""


class Deployments(Table[str, Deployment]):
    """The state that requests are judged against; `deployments` publishes it."""

    name = "deployments"
    of_sessions = False

    def describe(self, shard: Any, raw: bytes) -> dict[str, Any]:
        """For people."""
        return self.decode(raw).model_dump(mode="json", exclude_none=True)


def judge(
    model: str,
    action: Action,
    now: Deployment | None,
    versions: Sequence[str],
    ts: int,
    offers: Offers = lambda version: {},
) -> Deployment:
    """The state that an accepted request leads to. Raises RequestRefusedError, which says what to do.

    now: the state so far; versions: what the store holds of the model; ts: ms since epoch; offers: may read the store,
    and what it raises is raised.
    """
    return _Judge(model, action, now, versions, ts, offers).decided()


class _Judge:
    """One request, and what it meets."""

    def __init__(
        self, model: str, action: Action, now: Deployment | None, versions: Sequence[str], ts: int, offers: Offers
    ) -> None:
        self._model = model
        self._action = action
        self._now = now
        self._versions = versions
        self._ts = ts
        self._offers = offers

    def decided(self) -> Deployment:
        self._refuse_wrong()
        action = self._action
        match action.action:
            case "deploy" | "promote":
                return self._promoted()
            case "canary":
                return self._with_canary()
            case "shadow":
                return self._with_shadow()
            case "rollback":
                return self._rolled_back()
            case "freeze" | "unfreeze":
                return self._frozen(action.action == "freeze")
            case "unload":
                return self._unloaded()
            case "respond":
                return self._responded()
            case "republish":
                return self._unchanged()
            case "backfill":
                return self._filling()
            case other:
                raise RequestRefusedError(f"action {other!r} is none of a model's")

    def _refuse_wrong(self) -> None:
        action, revision = self._action, self._now.revision if self._now else 0
        if action.based_on not in (None, revision) and action.action != "republish":
            raise RequestRefusedError(
                f"the request is based on revision {action.based_on} of {self._model}, which is at {revision}: look "
                "at /models and send it again"
            )
        asks = (action.precision, action.max_error, action.max_latency) != (None, None, None)
        if asks and action.action not in PRECISE:
            raise RequestRefusedError(f"{action.action} takes no precision: {', '.join(PRECISE)} do")
        if action.limits and (why := unknown(action.limits)) is not None:
            raise RequestRefusedError(why)
        if action.fallback is not None:
            self._want(action.fallback)
            if action.action in ("deploy", "promote") and action.fallback == (action.version or _of_canary(self._now)):
                raise RequestRefusedError(f"{action.fallback} can't be its own fallback: name another version")

    def _promoted(self) -> Deployment:
        self._refuse_frozen()
        now = self._now
        version = self._action.version or _of_canary(now)
        if version is None:
            raise RequestRefusedError(
                f"a request to {self._action.action} {self._model} names no version, and there is no canary: send "
                '{"active": "2"}'
            )
        self._want(version)
        return self._next(
            version,
            active=version,
            previous=self._before(version),
            canary=None,
            shadow=tuple(one for one in (now.shadow if now else ()) if one != version),
        )

    def _with_canary(self) -> Deployment:
        self._refuse_frozen()
        now = self._deployed()
        version = self._action.version or _of_canary(now)
        if version is None or self._action.share is None:
            raise RequestRefusedError(
                'a canary needs a version and a share: {"action": "canary", "version": "2", "share": 0.1}'
            )
        if not self._action.share:
            raise RequestRefusedError('a canary with no share is none: {"action": "rollback"} ends it')
        if version == now.active:
            raise RequestRefusedError(f"{self._model}@{version} is the active version: it answers for all already")
        self._want(version)
        return self._next(
            version,
            canary=Canary(version=version, share=self._action.share),
            shadow=tuple(one for one in now.shadow if one != version),
        )

    def _with_shadow(self) -> Deployment:
        now, version = self._deployed(), self._action.version
        if version is None:
            raise RequestRefusedError('a shadow needs a version: {"action": "shadow", "version": "2"}')
        if version in now.versions:
            raise RequestRefusedError(f"{self._model}@{version} computes already: /models tells as what")
        if len(now.shadow) == MAX_SHADOWS:
            raise RequestRefusedError(
                f"{self._model} has {MAX_SHADOWS} shadows, which is all that a worker computes beside the active "
                f"version: unload one of {', '.join(now.shadow)} first"
            )
        self._want(version)
        return self._next(version, shadow=(*now.shadow, version))

    def _rolled_back(self) -> Deployment:
        """A canary goes first; without one the active version. A freeze holds nobody back from a retreat."""
        now, version = self._deployed(), self._action.version
        if now.canary is not None and version in (None, _of_canary(now)):
            return self._next(canary=None)
        version = version or now.previous
        if version is None:
            raise RequestRefusedError(
                f"{self._model} has no canary, and no version was active before {now.active}: name the one to go "
                "back to"
            )
        if version == now.active:
            raise RequestRefusedError(f"{self._model}@{version} is active already")
        self._want(version)
        shadow = tuple(one for one in now.shadow if one != version)
        return self._next(version, active=version, previous=now.active, canary=None, shadow=shadow)

    def _frozen(self, freeze: bool) -> Deployment:
        now = self._now
        if now is None or (freeze and now.active is None):
            now = self._deployed()  # says so
        if now.frozen == freeze:
            raise RequestRefusedError(f"{self._model} is {'frozen' if freeze else 'not frozen'} already")
        if not freeze and not self._action.author:
            raise RequestRefusedError(f"only a person unfreezes {self._model}: say who, as the request's author")
        return self._next(frozen=freeze)

    def _unloaded(self) -> Deployment:
        now, version = self._deployed(), self._action.version
        if version in (None, now.active):
            return self._next(active=None, previous=now.active, canary=None, shadow=(), backfill=None)
        if version not in now.versions:
            raise RequestRefusedError(f"{self._model}@{version} isn't deployed: nothing of it is loaded")
        if version == _of_canary(now):
            return self._next(canary=None)
        return self._next(shadow=tuple(one for one in now.shadow if one != version))

    def _responded(self) -> Deployment:
        """What the deployment declares for a drift, as far as it can be done: a fallback that has gone must not keep
        the model from being frozen."""
        now, wanted = self._deployed(), self._action.response or ""
        if self._action.based_on is None or self._action.version is None:
            raise RequestRefusedError("a response names the version that drifts, and the revision that it is based on")
        if not wanted:
            raise RequestRefusedError(f"the request names no response: {', '.join(RESPONSES)}")
        if self._action.version != now.active:
            raise RequestRefusedError(
                f"{self._model}@{self._action.version} no longer is the active version: nothing is done about its drift"
            )
        changes: dict[str, Any] = {}
        if "freeze" in wanted:
            changes["frozen"] = True
        if "fallback" in wanted and now.fallback in self._versions and now.fallback != now.active:
            canary = None if _of_canary(now) == now.fallback else now.canary
            shadow = tuple(one for one in now.shadow if one != now.fallback)
            changes |= {"active": now.fallback, "previous": now.active, "canary": canary, "shadow": shadow}
        return self._next(**changes, response=now.response)

    def _filling(self) -> Deployment:
        """Which features that is, whoever has the manifests says."""
        now, since = self._deployed(), self._action.since
        if since is not None and since > self._ts:
            raise RequestRefusedError("observations that are still to come need no backfill: name a time in the past")
        if self._action.version not in (None, *now.versions):
            raise RequestRefusedError(f"{self._model}@{self._action.version} isn't deployed: deploy it first")
        revision = now.revision + 1
        return self._next(backfill=Backfill(revision=revision, features=(), since=since))

    def _unchanged(self) -> Deployment:
        """based_on: the revision of what stands in its place; workers follow what is newer."""
        if self._now is None:
            raise RequestRefusedError(f"nothing of {self._model} was ever deployed: there is nothing to repeat")
        beyond = self._action.based_on or 0
        if beyond < self._now.revision or beyond > MOST_REVISION:
            return self._now
        return self._now.model_copy(update={"revision": beyond + 1})

    def _deployed(self) -> Deployment:
        if self._now is None or self._now.active is None:
            raise RequestRefusedError(f"{self._model} has no active version: deploy one first")
        return self._now

    def _refuse_frozen(self) -> None:
        if self._now is not None and self._now.frozen:
            raise RequestRefusedError(
                f"{self._model} is frozen since revision {self._now.revision} or before"
                f"{f' ({self._now.reason})' if self._now.reason else ''}: a person may unfreeze it"
            )

    def _want(self, version: str) -> None:
        if version not in self._versions:
            raise RequestRefusedError(
                f"{self._model}@{version} is not in the store, which has "
                f"{', '.join(self._versions) or 'no version of it'}: put its folder there first"
            )

    def _before(self, version: str) -> str | None:
        if self._now is None:
            return None
        return self._now.previous if self._now.active in (None, version) else self._now.active

    def _precise(self, version: str) -> str:
        """The precision that a request means for its version: the one it asks for, the one that it has, or fp32."""
        action, now = self._action, self._now
        who = f"{self._model}@{version}"
        try:
            if action.precision is not None:
                named(action.precision, self._offers(version), who)
                return action.precision
            if action.max_error is not None or action.max_latency is not None:
                return chosen(self._offers(version), who, action.max_error, action.max_latency)
        except ModelError as error:
            raise RequestRefusedError(str(error)) from None
        return FP32 if now is None else now.precision_of(version)

    def _next(self, version: str | None = None, **changes: Any) -> Deployment:
        """version: the one that is asked for."""
        now, action = self._now, self._action
        state = now or Deployment(model=self._model, revision=1, active=None, since=self._ts)
        limits = state.limits if action.limits is None else action.limits
        response = state.response if action.response is None else action.response
        if response and "fallback" in response and (action.fallback or state.fallback) is None:
            raise RequestRefusedError(
                f"the response to a drift of {self._model} is {response}: name its fallback version too, as `fallback`"
            )
        after = state.model_copy(
            update={
                "revision": state.revision + 1 if now else 1,
                "fallback": action.fallback or state.fallback,
                "limits": limits,
                "response": response,
                "preset": action.preset or state.preset,
                "low_alerts": state.low_alerts if action.low_alerts is None else action.low_alerts,
                "since": self._ts,
                "author": action.author,
                "reason": action.reason,
            }
            | changes
        )
        precise = state.precision if version is None else state.precision | {version: self._precise(version)}
        kept = {*after.versions, after.previous, after.fallback}
        return after.model_copy(
            update={"precision": {one: name for one, name in precise.items() if one in kept and name != FP32}}
        )


def _of_canary(deployment: Deployment | None) -> str | None:
    return deployment.canary.version if deployment is not None and deployment.canary is not None else None


deployments = Deployments()
