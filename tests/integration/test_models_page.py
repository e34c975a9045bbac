"""The examples of docs/models.md, pasted: from an estimator, a file or a web server to a version that answers."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from tests.rig import Rig
from tests.unit.test_adding import mlflow
from tests.worker import ROOT, free_port

PAGE: Final = (ROOT / "docs" / "models.md").read_text("utf-8")
PYTHON: Final = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHELL: Final = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
PRINTED: Final = re.findall(r"```\n(tumour@3.*?)```", PAGE, re.DOTALL)


def paste(code: str, folder: Path, settings: Mapping[str, str], *, shell: bool = False) -> str:
    """Runs it in the folder, as somebody with the virtual environment at hand does. Returns what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOMUNCULUS_")} | dict(settings)
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    command = ["bash", "-ec", code] if shell else [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_page_has_its_examples() -> None:
    assert [len(PYTHON), len(SHELL), len(PRINTED)] == [3, 5, 1]


def test_ten_lines_lead_from_an_estimator_to_answers(rig: Rig) -> None:
    worker = rig.worker("a").start()
    paste(PYTHON[0], rig.store.parent, {})
    worker.wait_log("No model is deployed yet", 30)
    said = paste(SHELL[0], rig.store.parent, worker.environment, shell=True)
    assert "tumour is at revision 1: 1 answers" in said
    event = re.search(r'`(\{"id".*?\}\})`', PAGE)
    assert event is not None
    rig.publisher.send(rig.topic("observations"), b"ann", event[1].encode())
    rig.publisher.flush(10)
    rig.wait_records("predictions", 1)
    (answer,) = (record.json for record in rig.reader("predictions").records)
    assert (answer["event_id"], answer["model"], answer["version"]) == ("e1", "tumour", "1")
    assert answer["label"] in ("malignant", "benign")


@pytest.mark.long
def test_files_folders_pickles_and_web_servers_do_what_the_page_says(rig: Rig) -> None:
    here = rig.store.parent
    settings = rig.worker("a").start().environment | {"HOMUNCULUS_MODEL_STORE": "store"}
    paste("\n".join(PYTHON), here, {})
    assert paste(SHELL[1], here, settings, shell=True).splitlines() == PRINTED[0].splitlines()
    folder = here / SHELL[2].split()[5]
    folder.parent.mkdir(parents=True)
    mlflow(here).rename(folder)
    assert "iris@1 is in store" in paste(SHELL[2], here, settings, shell=True)
    data = load_iris(return_X_y=True)
    (here / "iris.pkl").write_bytes(pickle.dumps(LogisticRegression(max_iter=1000).fit(*data)))
    assert json.loads(paste(SHELL[3], here, settings, shell=True))["version"] == "2"
    listed = paste(SHELL[4].replace("8000", str(free_port())), here, settings, shell=True)
    assert re.search(r"^tumour +1, 2, 3 ", listed, re.MULTILINE), listed
