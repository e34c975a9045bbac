"""scripts/demo chat as people run it: all that it promises happens, the crash in the middle included."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.worker import ROOT, free_port


@pytest.mark.long
@pytest.mark.timeout(600)
def test_three_people_talk_on_as_if_the_worker_had_not_died() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.chat.demo", "--web-port", str(free_port())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "kill -9" in done.stdout
    assert "\nNO " not in done.stdout
