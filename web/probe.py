"""`python -m web.probe live|ready`: asks this machine's worker, for a container that has no curl. Exits with 0 or 1."""

from __future__ import annotations

import ssl
import sys
import urllib.request
from typing import Final
from urllib.error import URLError

from core.settings import Settings

ANSWER_S: Final = 2.0


def healthy(what: str) -> bool:
    """Whether the worker says 200 to /health/WHAT."""
    settings = Settings.read()
    scheme = "https" if settings.web_cert else "http"
    # This machine asks itself: whose name the certificate has doesn't matter.
    context = ssl._create_unverified_context()
    host = "127.0.0.1" if settings.web_bind.is_unspecified else str(settings.web_bind)
    try:
        url = f"{scheme}://{host}:{settings.web_port}/health/{what}"
        with urllib.request.urlopen(url, timeout=ANSWER_S, context=context) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(0 if healthy(sys.argv[1] if len(sys.argv) > 1 else "live") else 1)
