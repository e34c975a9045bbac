"""The scripts around the product: lock files that hold what they must, and mistakes answered with what to do."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements-cpu.txt", "requirements-gpu.txt", "requirements-dev.txt")
SHELL = [path for path in [*(ROOT / "scripts").iterdir(), ROOT / ".ci/run"] if path.is_file() and not path.suffix]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=60
    )


def pins(lock: str) -> dict[str, set[str]]:
    """package -> its pinned versions: several where they depend on the Python."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / lock).read_text("utf-8"), re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_hashes_and_none_an_address(lock: str) -> None:
    text = (ROOT / lock).read_text("utf-8")
    assert "://" not in text
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(entries) == sum(map(len, pins(lock).values()))
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_a_worker_installs_the_versions_that_the_tests_ran_with() -> None:
    tested = pins("requirements-dev.txt")
    cpu, gpu = pins("requirements-cpu.txt"), pins("requirements-gpu.txt")
    assert {name: cpu[name] for name in cpu if cpu[name] != tested.get(name)} == {}
    assert {name for name in gpu if gpu[name] != tested.get(name)} == {"onnxruntime-gpu"}


@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_every_script_parses_and_can_be_executed(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert script.read_text("utf-8").startswith("#!/usr/bin/env bash\n# ")
    assert run("bash", "-n", str(script)).stderr == ""


def test_a_python_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = run("scripts/venv", PYTHON=str(old), VENV=str(tmp_path / "venv"))
    assert done.returncode == 1
    assert f"PYTHON={old} is not a working Python >=3.11,<3.15" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_an_unknown_demo_is_answered_with_those_that_there_are() -> None:
    done = run("scripts/demo", "nowhere")
    assert done.returncode == 2
    demos = sorted(path.parent.name for path in ROOT.glob("examples/*/demo.py"))
    assert f"no demo named nowhere; there is: {' '.join(demos)}\n" in done.stderr


def test_an_unknown_long_part_is_answered_with_those_that_there_are() -> None:
    done = run("scripts/test", "--long", "nothing")
    assert done.returncode == 1
    assert "no part is named nothing" in done.stderr
    assert "python3.13" in done.stdout


def test_kafka_without_a_command_says_how_it_is_used() -> None:
    done = run("scripts/kafka")
    assert done.returncode == 2
    assert "scripts/kafka start PORT DATADIR" in done.stderr


def test_a_given_broker_is_used_and_none_is_started() -> None:
    done = run("scripts/with-kafka", "sh", "-c", "echo $KAFKA_BOOTSTRAP", KAFKA_BOOTSTRAP="elsewhere:9092")
    assert (done.returncode, done.stdout) == (0, "elsewhere:9092\n")


def test_a_machine_without_java_goes_on_without_kafka_and_says_so(tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "env", "sh"):
        (tmp_path / tool).symlink_to(next(p for d in os.get_exec_path() if (p := Path(d, tool)).exists()))
    done = run("scripts/with-kafka", "sh", "-c", "exit 7", PATH=str(tmp_path), KAFKA_BOOTSTRAP="")
    assert done.returncode == 7
    assert "going on without Apache Kafka" in done.stderr
