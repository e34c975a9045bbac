"""The licence check lets through what anybody may use and sell, and nothing that it doesn't understand."""

from __future__ import annotations

import pytest

from scripts.licences import judge, permits, required


@pytest.mark.parametrize(
    ("expression", "classifiers", "text"),
    [
        ("Apache-2.0 AND MIT", [], None),
        ("GPX-9 OR (MIT AND Zlib)", [], None),
        (None, ["OSI Approved", "MIT License"], None),
        (None, ["BSD License"], "Copyright (c) 2017 somebody\n\nAll rights reserved."),
        (None, [], "Apache License, Version 2.0"),
        (None, [], "MPL-2.0"),
    ],
)
def test_free_licences_pass(expression: str | None, classifiers: list[str], text: str | None) -> None:
    assert judge("package", expression, classifiers, text) is None


@pytest.mark.parametrize(
    ("expression", "classifiers", "text"),
    [
        ("GPL-3.0-or-later", [], None),
        ("MIT AND LGPL-2.1-only", [], None),
        ("MIT AND Nobody-Knows", [], None),
        ("MIT OR", [], None),
        ("(MIT", [], None),
        (None, ["GNU General Public License v3 (GPLv3)"], "MIT"),
        (None, ["MIT License"], "AGPL-3.0"),
        (None, [], "BUSL-1.1"),
        (None, [], "CC-BY-NC-4.0"),
        (None, [], "free for non-commercial use"),
        (None, ["OSI Approved"], None),
        (None, [], None),
    ],
)
def test_what_is_bound_or_unknown_fails_and_is_named(
    expression: str | None, classifiers: list[str], text: str | None
) -> None:
    problem = judge("package", expression, classifiers, text)
    assert problem is not None
    assert problem.startswith("package: ")


def test_an_exception_is_no_way_around_a_bound_licence() -> None:
    assert judge("venusian", None, ["Repoze Public License"], None) is None
    assert judge("venusian", "AGPL-3.0-only", [], None) is not None


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT or Apache-2.0", True),
        ("MIT AND (GPL-2.0 OR ISC)", True),
        ("MIT AND (GPL-2.0 OR EPL-1.0)", False),
        ("", False),
    ],
)
def test_an_expression_is_read_as_spdx_writes_it(expression: str, allowed: bool) -> None:
    assert permits(expression) is allowed


def test_only_what_this_platform_installs_is_asked_for() -> None:
    lock = (
        "# a comment\n"
        "always==1.0 \\\n    --hash=sha256:00\n    # via ours\n"
        "never==1.0 ; sys_platform == 'no such system' \\\n    --hash=sha256:00\n"
    )
    assert required(lock) == ["always"]
