"""The file system that a model store's URL means, and how that URL may be shown."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import fsspec

from core.errors import ModelError

EXTRAS: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
"""Scheme -> the extra that brings its library."""
_PASSWORD: Final = re.compile(r"(://[^/@:]*:)[^/@]*@")


def shown(url: str) -> str:
    """The URL without its password."""
    return _PASSWORD.sub(r"\1***@", url)


def opened(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it. Asks nothing of the store yet.

    Raises ModelError for a URL that can't be opened, naming what is missing.
    """
    scheme = urlsplit(url).scheme
    try:
        return _google(url) if scheme in ("gs", "gcs") else _any(url)
    except ImportError as error:
        extra = EXTRAS.get(scheme)
        needs = f"it needs the extra {extra} (pip install -e '.[{extra}]'): {error}" if extra else str(error)
        raise ModelError(f"model store {shown(url)}: {needs}") from error
    except ValueError as error:
        raise ModelError(f"model store {shown(url)}: {error}") from error


def _google(url: str) -> tuple[Any, str]:
    from models.gcs import GoogleStorage

    return GoogleStorage(), str(GoogleStorage._strip_protocol(url))


def _any(url: str) -> tuple[Any, str]:
    """A web server's password becomes a header, so that it isn't in the path, which errors and logs may show."""
    parts, options = urlsplit(url), {}
    if parts.scheme in ("http", "https") and parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        options["headers"] = {"Authorization": f"Basic {b64encode(user.encode()).decode()}"}
        url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    file_system, path = fsspec.core.url_to_fs(url, **options)
    return file_system, str(path)
