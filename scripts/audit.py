"""Looks the workers' packages up in the database of known vulnerabilities; fails when one is known.

    python scripts/audit.py

Where the database can't be reached, or doesn't know the packages, the audit says NOT RUN and doesn't fail: silence
from pip-audit, which calls packages that it could not look up "no known vulnerabilities", is no answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCKS: Final = ("requirements-cpu.txt", "requirements-gpu.txt")
LIMIT_S: Final = 180.0


@dataclass(slots=True)
class Report:
    """What is known of the packages of the lock files."""

    audited: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)
    """package -> why it could not be looked up"""
    findings: dict[str, list[str]] = field(default_factory=dict)
    """package version -> the vulnerabilities, each with the versions that mend it"""

    def add(self, dependencies: list[dict[str, Any]]) -> None:
        """Takes what pip-audit prints of one lock file."""
        for dependency in dependencies:
            name = dependency["name"]
            if "skip_reason" in dependency:
                self.skipped[name] = dependency["skip_reason"]
                continue
            self.audited.add(name)
            if dependency["vulns"]:
                self.findings[f"{name} {dependency['version']}"] = [
                    f"{vulnerability['id']} (mended in {', '.join(vulnerability['fix_versions']) or 'no release yet'})"
                    for vulnerability in dependency["vulns"]
                ]

    def lines(self) -> list[str]:
        """The report as it is printed."""
        lines = [f"audit: {package}: {'; '.join(found)}" for package, found in sorted(self.findings.items())]
        if self.skipped:
            name, why = min(self.skipped.items())
            lines += [
                "audit: ************************************************************",
                f"audit: NOT RUN for {len(self.skipped)} of {len(self.skipped) + len(self.audited)} packages",
                f"audit: e.g. {name}: {why}",
                "audit: ************************************************************",
            ]
        lines.append(f"audit: {len(self.audited)} packages looked up, {len(self.findings)} with known vulnerabilities")
        return lines


def look_up(lock: str) -> list[dict[str, Any]]:
    """What pip-audit knows of a lock file's packages. Without an answer each of them counts as skipped."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "audit.json")
        command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--requirement", lock]
        options = ["--format", "json", "--output", str(answer), "--progress-spinner", "off", "--timeout", "10"]
        try:
            done = subprocess.run(
                command + options, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            why = (done.stderr.strip().splitlines() or ["pip-audit gave no reason"])[-1]
        except subprocess.TimeoutExpired:
            why = f"no answer within {LIMIT_S:g} s"
        if answer.exists() and answer.stat().st_size:
            dependencies: list[dict[str, Any]] = json.loads(answer.read_text("utf-8"))["dependencies"]
            return dependencies
    names = [line.partition("==")[0] for line in (ROOT / lock).read_text("utf-8").splitlines() if "==" in line]
    return [{"name": name, "skip_reason": why} for name in names]


def main() -> int:
    report = Report()
    for lock in LOCKS:
        report.add(look_up(lock))
    print("\n".join(report.lines()))
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
