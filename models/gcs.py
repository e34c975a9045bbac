"""Google Cloud Storage as a store's file system: plain requests with a bound, and the credentials of Google's tools.

Needs the extra `gs`; imported only where a store's URL asks for it.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, Final

import google.auth
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError, is_retriable
from google.auth.credentials import Credentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

from models.download import TIMEOUT

PAUSES: Final = [0.5, 1.5]
"""Seconds before a request that failed in passing is sent again. gcsfs' own five attempts more take half a minute, for
each question to a store that is away."""
AGAIN_S: Final = 30.0
"""Before missing credentials are looked for again: a question to the store needs them several times."""
SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
EMULATOR: Final = "STORAGE_EMULATOR_HOST"
"""Google's variable for the address of a server that stands in for theirs."""


class GoogleStorage(GCSFileSystem):  # type: ignore[misc]  # gcsfs has no types
    """The JSON API alone. What gcsfs makes of gs:// by default asks over gRPC first what kind of bucket it is: another
    right, and a minute of waiting, for each question, where nobody answers that (emulators)."""

    cachable = False  # by fsspec: a store has a file system of its own

    def __init__(self) -> None:
        """Sends nothing yet: who we are is found out with the first request. An emulator isn't told it."""
        emulated = os.environ.get(EMULATOR, "") not in ("", "default")
        token = "anon" if emulated else DefaultCredentials()
        super().__init__(token=token, requests_timeout=TIMEOUT)

    async def _request(self, *args: Any, **kwargs: Any) -> Any:
        """One request. Raises PermissionError where the store refuses us, which no attempt more would change."""
        once = GCSFileSystem._request.__wrapped__  # without gcsfs' own attempts
        for pause in (*PAUSES, None):
            try:
                return await once(self, *args, **kwargs)
            except Exception as error:
                if pause is None or not is_retriable(error):
                    if _refuses(error):
                        raise PermissionError(str(error)) from error
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")


class DefaultCredentials(Credentials):
    """Application default credentials, looked for when they are first needed and again until they are found: a worker
    starts without them and serves what it has cached.

    Google's library looks into GOOGLE_APPLICATION_CREDENTIALS, gcloud's folder, and at last asks the machine's metadata
    server: three times 3 s at most, and not at all with NO_GCE_CHECK=true.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found: Any = None
        self._missing = ""
        """Why the last look found none, told until it is time for the next."""
        self._next_look = 0.0

    def refresh(self, request: Any) -> None:
        """Raises PermissionError that says what to set."""
        try:
            if self._found is None:
                self._found = self._look(request)
            self._found.refresh(request)
        except GoogleAuthError as error:
            raise PermissionError(f"the credentials for Google Cloud Storage got no token: {error}") from error
        self.token, self.expiry = self._found.token, self._found.expiry

    def _look(self, request: Any) -> Any:
        if time.monotonic() < self._next_look:
            raise PermissionError(self._missing)
        try:
            return google.auth.default(scopes=[SCOPE], request=request)[0]
        except DefaultCredentialsError as error:
            self._missing = (
                f"no credentials for Google Cloud Storage: {error} Set GOOGLE_APPLICATION_CREDENTIALS to the key file "
                "of a service account, or run `gcloud auth application-default login`; a bucket that everybody may "
                "read is also the store https://storage.googleapis.com/BUCKET/FOLDER"
            )
            self._next_look = time.monotonic() + AGAIN_S
            raise PermissionError(self._missing) from error

    def apply(self, headers: dict[str, str], token: str | None = None) -> None:
        """With what the credentials that were found add of their own, like the project that pays."""
        self._found.apply(headers, token)


def _refuses(error: Exception) -> bool:
    return (isinstance(error, HttpError) and error.code == 401) or (
        isinstance(error, OSError) and str(error).startswith("Forbidden")
    )
