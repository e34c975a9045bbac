"""Where a worker's CPU goes, by part: the parts are those of its files, and add up to the whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.profile import OTHERS, PARTS

WORK = """
import os, signal, sys, threading, time
from pathlib import Path
from engine.profile import Profile

def spend(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def code(file):
    space = {"spend": spend}
    exec(compile("def fold(seconds):\\n    spend(seconds)", file, "exec"), space)
    return space["fold"]

profile = Profile(Path(sys.argv[1]))
profile.start()
code("/x/models/rows.py")(0.1)
os.kill(os.getpid(), signal.SIGCONT)
code("/x/models/drift/monitor.py")(0.2)
code("/x/agents/plan.py")(0.1)
done = threading.Event()
def compute():
    spend(0.15)
    done.wait()
thread = threading.Thread(target=compute, name="inference")
thread.start()
while time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) < 0.15:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGCONT)
done.set()
thread.join()
profile.write()
"""


@pytest.fixture(scope="module")
def laps(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of a process that spends .1 s; then, once continued, .2, .1 and, in its inference thread, .15 s."""
    out = tmp_path_factory.mktemp("profile") / "profile.json"
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", WORK, str(out)], check=True, cwd=root, env=dict(os.environ), timeout=60)
    found: list[dict[str, Any]] = json.loads(out.read_text())["laps"]
    return found


def test_each_part_is_told_its_own_seconds(laps: list[dict[str, Any]]) -> None:
    assert laps[0]["seconds"]["model"] == pytest.approx(0.1, abs=0.02)
    assert laps[1]["seconds"]["detect"] == pytest.approx(0.2, abs=0.02)
    assert laps[1]["seconds"]["fold"] == pytest.approx(0.1, abs=0.02)


def test_what_the_inference_thread_computes_is_the_model_s(laps: list[dict[str, Any]]) -> None:
    assert laps[1]["seconds"]["model"] == pytest.approx(0.15, abs=0.02)
    assert laps[1]["seconds"][OTHERS] < 0.01


def test_parts_add_up_to_the_cpu_of_their_lap(laps: list[dict[str, Any]]) -> None:
    for lap in laps:
        assert sum(lap["seconds"].values()) == pytest.approx(lap["cpu"], abs=0.01)


def test_every_file_of_a_part_is_there() -> None:
    root = Path(__file__).parents[2]
    for file, function, _ in PARTS:
        if file.startswith("aiokafka/"):
            continue
        assert (root / file).exists(), file
        assert f"def {function}(" in (root / file).read_text() if function else True
