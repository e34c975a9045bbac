"""Fails unless every package that a worker installs has a licence that lets anybody use and sell what is built on it.

    python scripts/licences.py

Reads requirements-cpu.txt and requirements-gpu.txt for the names, and the metadata of what is installed for the
licences: an SPDX expression where there is one, else the classifiers, else a short licence text. What none of them
answers is unknown, and unknown fails.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[1]
LOCKS: Final = ("requirements-cpu.txt", "requirements-gpu.txt")

ALLOWED: Final = frozenset(
    {
        *("MIT", "MIT-0", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "ISC", "Apache-2.0", "PSF-2.0", "Python-2.0"),
        *("Zlib", "CC0-1.0", "Unlicense", "BSL-1.0", "HPND"),
        "MPL-2.0",  # changes to its own files must be shared; using it asks nothing
    }
)

FORBIDDEN: Final = re.compile(
    r"\b(A|L)?GPL|GNU (Affero|Lesser|General)|SSPL|Server Side Public|Business Source|BUSL|Commons Clause"
    r"|Elastic License|non-?commercial|\bNC\b|proprietary",
    re.IGNORECASE,
)
"""Looked for in everything that a package says of its licence, whatever else it says."""

WORDS: Final = {
    "MIT": r"(the )?MIT( license)?( \(MIT\).*)?",
    "Apache-2.0": r"Apache( software)?( license)?,?( version| v)? ?(2(\.0)?)?",
    "BSD-3-Clause": r"(3-clause |new |modified )?BSD( license)?|BSD 3-clause( license)?|3-Clause BSD License",
    "BSD-2-Clause": r"(2-clause |simplified )BSD( license)?|BSD 2-clause( license)?",
    "PSF-2.0": r"(Python Software Foundation|PSF)( License)?",
    "MPL-2.0": r"Mozilla Public License 2\.0 \(MPL 2\.0\)",
    "ISC": r"ISC( License)?( \(ISCL\))?",
}
"""SPDX identifier -> how classifiers and free texts name it."""

EXCEPTIONS: Final = {
    "onnxruntime-gpu": "MIT: built from onnxruntime's source; its gigabytes are not installed where this runs",
    "venusian": "Repoze Public License: the BSD licence and a clause on naming; no SPDX identifier was given to it",
}
"""package -> its licence, and why its metadata doesn't say so."""


def judge(name: str, expression: str | None, classifiers: Iterable[str], text: str | None) -> str | None:
    """Why a package may not be used, or None when it may.

    expression: License-Expression; classifiers: their last parts; text: the free License field.
    """
    classifiers = [c for c in classifiers if c not in {"OSI Approved", "DFSG approved"}]
    short = (text or "").strip().partition("\n")[0]
    said = " / ".join(filter(None, [expression, *classifiers, short])) or "nothing"
    if FORBIDDEN.search(said):
        return f"{name}: {said}"
    if name in EXCEPTIONS:
        return None
    if expression:
        allowed = permits(expression)
    elif classifiers:
        allowed = all(identify(classifier) in ALLOWED for classifier in classifiers)
    else:
        allowed = permits(short) or identify(short) in ALLOWED
    return None if allowed else f"{name}: says {said}, which is not known to be free for every use"


def permits(expression: str) -> bool:
    """Whether an SPDX expression leaves a way of use with ALLOWED licences alone. A malformed one does not."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression)

    def alternatives() -> bool:
        result = conjunction()
        while tokens and tokens[0].upper() == "OR":
            tokens.pop(0)
            result = conjunction() or result
        return result

    def conjunction() -> bool:
        result = single()
        while tokens and tokens[0].upper() == "AND":
            tokens.pop(0)
            result = single() and result
        return result

    def single() -> bool:
        token = tokens.pop(0)
        if token == "(":
            result = alternatives()
            return tokens.pop(0) == ")" and result
        return token in ALLOWED

    try:
        return alternatives() and not tokens
    except IndexError:  # it ends where something must follow
        return False


def identify(words: str) -> str | None:
    """The SPDX identifier of a licence that is named in words."""
    return next((spdx for spdx, pattern in WORDS.items() if re.fullmatch(pattern, words.strip(), re.IGNORECASE)), None)


def required(lock: str) -> list[str]:
    """The packages of a lock file that this platform and Python install."""
    lines = [line.removesuffix("\\").strip() for line in lock.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    requirements = [Requirement(line) for line in lines]
    return [r.name for r in requirements if r.marker is None or r.marker.evaluate()]


def main() -> int:
    names = sorted({name for lock in LOCKS for name in required((ROOT / lock).read_text("utf-8"))})
    problems = []
    for name in names:
        try:
            metadata = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            if name not in EXCEPTIONS:
                problems.append(f"{name}: is not installed, so its licence can't be read; run scripts/venv")
            continue
        classifiers = [
            classifier.rpartition("::")[2].strip()
            for classifier in metadata.get_all("Classifier") or []
            if classifier.startswith("License ::")
        ]
        expression, text = ((metadata.get_all(key) or [None])[0] for key in ("License-Expression", "License"))
        problem = judge(name, expression, classifiers, text)
        if problem:
            problems.append(problem)
    for problem in problems:
        print(f"licences: {problem}")
    print(f"licences: {len(names)} packages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
