"""`faust -A app models`: a version's life, and what it has made of a session."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests import tally
from tests.command import command
from tests.kafka import free_port
from tests.rig import Rig
from tests.stream import EPOCH_MS, Sent, observation


async def test_a_version_is_promoted_shown_and_its_state_read(rig: Rig) -> None:
    worker = rig.worker("a").start()
    rig.deploy()
    tally.publish(rig.store, "2")
    said: dict[str, Any] = {
        name.removeprefix("HOMUNCULUS_").lower(): value for name, value in worker.environment.items()
    }

    def models(*words: str) -> subprocess.CompletedProcess[str]:
        return command("--json", "models", *words, **said)

    refused = models("promote", tally.NAME, "7")
    assert refused.returncode == 1
    assert f"{tally.NAME}@7 is not in the store, which has 1, 2" in refused.stderr
    stale = models("promote", tally.NAME, "2", "--based-on", "5")
    assert "is based on revision 5" in stale.stderr
    done = models("promote", tally.NAME, "2", "--based-on", "1", "--author", "ann", "--reason", "better")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["revision"] == 2

    worker.wait_log(f"{tally.NAME}@2 answers", 30)
    shown = json.loads(models("show", tally.NAME).stdout)
    assert shown["deployment"]["author"] == "ann"
    assert shown["versions"].keys() == {"1", "2"}
    assert shown["workers"].keys() == {"a"}
    assert "no model 'nobody'" in models("show", "nobody").stderr

    one = Sent("e1", "Zoë/7", EPOCH_MS, 1.5)
    rig.publisher.send(rig.topic("observations"), one.session.encode(), observation(one))
    rig.publisher.flush()
    rig.wait_records("predictions", 1)
    value = command("--json", "tables", "get", "sessions", one.session, **said)
    assert json.loads(value.stdout)["count"] == 1, value.stderr
    nobody = command("tables", "get", "sessions", "nobody", **said)
    assert (nobody.returncode, "Traceback" in nobody.stderr) == (1, False)
    stopped = command("tables", "get", "sessions", "x", **said | {"web_port": free_port()})
    assert "no worker answers" in stopped.stderr
