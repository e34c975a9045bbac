"""What is deployed names settings, routes and metrics that exist: a typing error there shows only in production."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
MANIFESTS = sorted((ROOT / "deploy" / "k8s").glob("*.yml"))
QUERIES = [ROOT / "deploy/prometheus/alerts.yml", ROOT / "deploy/grafana/dashboards/homunculus.json"]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))
    return found


@pytest.mark.parametrize("path", [COMPOSE, ROOT / "deploy" / "Dockerfile", *MANIFESTS], ids=lambda path: path.name)
def test_every_variable_is_a_setting(path: Path) -> None:
    for name in re.findall(r"HOMUNCULUS_([A-Z_]+)", path.read_text("utf-8")):
        assert name.lower() in Settings.model_fields, f"{path.name}: HOMUNCULUS_{name}"


def test_no_container_falls_back_to_the_embedded_broker() -> None:
    assert compose()["services"]["worker"]["environment"]["HOMUNCULUS_BROKER"].startswith("kafka://")
    assert "HOMUNCULUS_BROKER: kafka" in (ROOT / "deploy/k8s/homunculus.yml").read_text("utf-8")


def test_every_image_is_pinned_to_a_version() -> None:
    images = [one["image"] for one in compose()["services"].values() if "image" in one]
    bases = re.findall(r"^FROM (\S+:\S+)", (ROOT / "deploy" / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert len(images) == 8
    for image in (*images, *bases):
        assert re.search(r":v?\d+\.\d+", image), image


def test_an_image_has_compiled_what_its_worker_could_not_keep() -> None:
    stages = re.split(r"^FROM ", (ROOT / "deploy" / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    workers = [stage for stage in stages if 'CMD ["faust"' in stage]
    assert len(workers) == 2
    for stage in workers:
        before, _, _ = stage.partition("\nUSER ")  # who may write there
        assert re.search(r"compileall .*/srv/homunculus.*stdlib", before, re.DOTALL), stage


def test_nothing_is_published_beyond_this_machine() -> None:
    for name, service in compose()["services"].items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), (name, port)


@pytest.mark.parametrize("path", QUERIES, ids=lambda path: path.name)
def test_every_metric_that_is_asked_for_is_one_that_workers_have(path: Path) -> None:
    told = set(re.findall(r"`(homunculus_\w+)`", (ROOT / "docs" / "observability.md").read_text("utf-8")))
    asked = set(re.findall(r"\bhomunculus_\w+", path.read_text("utf-8")))
    assert len(asked) >= 5
    for name in asked:
        assert re.sub(r"_(total|bucket|sum|count)$", "", name) in told, name


def test_the_dashboards_panels_do_not_lie_on_top_of_each_other() -> None:
    panels = json.loads(QUERIES[1].read_text("utf-8"))["panels"]
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_every_alert_has_its_line_of_what_to_do() -> None:
    rules = yaml.safe_load(QUERIES[0].read_text("utf-8"))["groups"][0]["rules"]
    operations = (ROOT / "docs" / "operations.md").read_text("utf-8")
    for rule in rules:
        assert f"| {rule['alert']} |" in operations
