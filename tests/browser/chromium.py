"""The Chromium that tests of the page run in."""

from __future__ import annotations

import os
import shutil
from typing import Final

import pytest

NAMES: Final = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")


def given_chromium() -> str:
    """The path of one that is installed, or the one that CHROMIUM names.

    Without one the test is skipped; it fails where REQUIRE_CHROMIUM is set.
    """
    for name in filter(None, (os.environ.get("CHROMIUM"), *NAMES)):
        if path := shutil.which(name):
            return path
    why = "no Chromium is installed (on Debian and Ubuntu: apt-get install chromium)"
    if os.environ.get("REQUIRE_CHROMIUM", "0") not in ("", "0"):
        pytest.fail(f"REQUIRE_CHROMIUM is set, but {why}", pytrace=False)
    pytest.skip(why)
