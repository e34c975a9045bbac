"""What import-linter's contracts can't say: app.py is the top, and the contracts name every package of ours."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {"core", "models", "engine", "tables", "agents", "web", "cli"}
AROUND = {"benchmarks", "examples", "scripts", "tests"}
"""They may use the layers, and none of the layers uses them."""

SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))


def imported(source: Path) -> set[str]:
    """The top-level names of the modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_imports_the_app_or_what_stands_around_the_layers(source: Path) -> None:
    assert imported(source).isdisjoint({"app", *AROUND})


def test_the_contracts_cover_every_package() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert set(contracts["root_packages"]) == LAYERS
    assert packages <= LAYERS | AROUND
