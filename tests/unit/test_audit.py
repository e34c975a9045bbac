"""The audit's silence is never taken for an answer."""

from __future__ import annotations

from scripts.audit import Report

FOUND = {"name": "a", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}
CLEAN = {"name": "b", "version": "2.0", "vulns": []}
SKIPPED = {"name": "c", "skip_reason": "not found"}


def test_packages_that_could_not_be_looked_up_are_said_loudly() -> None:
    report = Report()
    report.add([CLEAN, SKIPPED])
    text = "\n".join(report.lines())
    assert "NOT RUN for 1 of 2 packages" in text
    assert "c: not found" in text
    assert not report.findings


def test_a_known_vulnerability_is_named_with_the_release_that_mends_it() -> None:
    report = Report()
    report.add([FOUND, CLEAN])
    assert report.findings == {"a 1.0": ["CVE-1 (mended in 1.1)"]}
    assert report.lines() == [
        "audit: a 1.0: CVE-1 (mended in 1.1)",
        "audit: 2 packages looked up, 1 with known vulnerabilities",
    ]
