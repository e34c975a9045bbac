"""scripts/gpu-check where there is no GPU: it says so, and what it would run there runs here as far as it can."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_GPU = shutil.which("nvidia-smi") is None


def run(*arguments: str, limit_s: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["scripts/gpu-check", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
    )


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_ends_with_a_status_of_its_own() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("gpu-check: NOT RUN: there is no NVIDIA GPU here")


def test_it_is_told_how_to_bring_a_wheel_along() -> None:
    done = run("--help")
    assert done.returncode == 0
    for word in ("split", "join", "pip download", "NOT RUN", "--on cpu"):
        assert word in done.stdout
    assert run("nonsense").returncode == 2
    assert run("split", "one").returncode == 2


def test_a_file_goes_through_pieces_and_damage_on_the_way_is_found(tmp_path: Path) -> None:
    wheel = tmp_path / "onnxruntime_gpu-1.whl"
    wheel.write_bytes(os.urandom(2500))
    pieces = tmp_path / "pieces"
    assert run("split", str(wheel), str(pieces), PIECE="1000").returncode == 0
    assert [file.stat().st_size for file in sorted(pieces.glob("*.[0-9]*"))] == [1000, 1000, 500]
    assert run("join", str(pieces)).returncode == 0
    assert (pieces / wheel.name).read_bytes() == wheel.read_bytes()
    (pieces / f"{wheel.name}.01").write_bytes(b"damaged")
    assert run("join", str(pieces)).returncode != 0
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run("join", str(empty)).returncode == 2


@pytest.mark.long
@pytest.mark.timeout(300)
def test_all_of_it_holds_in_a_rehearsal_on_the_cpu(tmp_path: Path) -> None:
    assert run("models", str(tmp_path)).returncode == 0
    done = run("--on", "cpu", "--quick", "--models", str(tmp_path), limit_s=240)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert all(line["holds"] for line in lines)
    names = {line["name"] for line in lines}
    assert {"difference from the CPU", "throughput", "calls without an answer", "swaps that events waited for"} <= names
