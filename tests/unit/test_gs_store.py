"""A model store in Google Cloud Storage, on an emulator; credentials, and what is said where there are none."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from gcp_storage_emulator.server import create_server
from google.auth.compute_engine import _metadata

from core.errors import ModelError, StoreAwayError
from models import gcs
from models.store import ModelStore
from tests.unit.bucket_store import Bucket, BucketStore
from tests.unit.graphs import folder, linear
from tests.unit.line import Line


class Google(Bucket):
    url = "gs://models"

    def __init__(self, line: Line, storage: Any) -> None:
        self.line = line
        self._storage = storage  # the emulator's own, past the line

    def get(self, key: str) -> bytes:
        return bytes(self._storage.get_file("models", key))

    def put(self, key: str, content: bytes) -> None:
        entry = self._storage.get_file_obj("models", key)
        self._storage.create_file("models", key, content, {**entry, "size": len(content)})

    def delete(self, key: str) -> None:
        self._storage.delete_file("models", key)

    def keys(self) -> list[str]:
        return [entry["name"] for entry in self._storage.get_file_list("models", None, None)[0]]


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    """gcp-storage-emulator, on 127.0.0.1."""
    running = create_server("127.0.0.1", 0, in_memory=True, default_bucket="models")
    running.start()
    port = running._api._httpd.server_address[1]
    with pytest.MonkeyPatch.context() as patch, Line(port) as line:
        patch.setenv("STORAGE_EMULATOR_HOST", line.url)
        patch.setattr(gcs, "PAUSES", [])
        yield Google(line, running._storage)
        line.shutdown()
    running.stop()


class TestGoogleCloudStorage(BucketStore):
    """On the emulator."""


class Authority(http.server.ThreadingHTTPServer):
    """Gives out tokens, and answers questions for objects with what it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.token: tuple[int, Any] = (200, {"access_token": "t0ken", "expires_in": 3600, "token_type": "Bearer"})
        self.answers: list[tuple[int, Any]] = []
        """To one question each; then the bucket is empty."""
        self.asked: list[str | None] = []
        """Authorization of each question."""


class _Answers(http.server.BaseHTTPRequestHandler):
    server: Authority

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(*self.server.token)

    def do_GET(self) -> None:
        self.server.asked.append(self.headers["Authorization"])
        if self.server.answers:
            self._answer(*self.server.answers.pop(0))
        else:
            self._answer(404 if "/o/" in self.path else 200, {})

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def authority() -> Iterator[Authority]:
    with Authority() as running:
        threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No emulator, and no credentials anywhere."""
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))


@pytest.fixture
def account(nobody: None, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    """A store that a service account with a key file asks."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path / "account.json"
    told = {"type": "service_account", "client_email": "ann@example.com", "token_uri": f"{authority.url}/token"}
    file.write_text(json.dumps({**told, "private_key": key.decode()}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    store = ModelStore("gs://models", cache=tmp_path / "cache")
    store._fs._endpoint = authority.url
    return store


def test_a_key_file_is_enough_and_its_token_goes_with_every_question(account: ModelStore, authority: Authority) -> None:
    assert account.models() == []
    with pytest.raises(ModelError, match="churn@1 isn't in the model store"):
        account.fetch("churn", "1")
    assert len(authority.asked) > 1
    assert set(authority.asked) == {"Bearer t0ken"}


def test_a_key_that_was_revoked_is_told(account: ModelStore, authority: Authority) -> None:
    authority.token = (400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
    with pytest.raises(StoreAwayError, match=r"credentials for Google Cloud Storage got no token: .*Invalid JWT"):
        account.models()
    assert authority.asked == []


@pytest.mark.parametrize("status", [401, 403])
def test_what_google_refuses_is_told_in_its_words_and_not_asked_again(
    status: int, account: ModelStore, authority: Authority
) -> None:
    authority.answers = [(status, {"error": {"code": status, "message": "ann lacks storage.objects.list"}})] * 9
    with pytest.raises(StoreAwayError, match=r"gs://models can't be used: .*ann lacks storage\.objects\.list"):
        account.models()
    assert len(authority.asked) == 1


def test_a_request_that_fails_in_passing_is_sent_again(
    account: ModelStore, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs, "PAUSES", [0.0, 0.0])
    authority.answers = [(503, {}), (429, {})]
    assert account.models() == []
    assert len(authority.asked) == 3
    authority.answers = [(503, {})] * 9
    with pytest.raises(StoreAwayError, match="503"):
        account.models()
    assert len(authority.asked) == 6


def test_missing_credentials_are_told_with_what_to_set_and_what_is_cached_loads(
    server: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ModelStore("gs://models", cache=tmp_path / "cache").publish(folder(tmp_path / "made", linear()))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    restarted = ModelStore("gs://models", cache=tmp_path / "cache")
    assert restarted.fetch("churn", "1") == known
    words = r"no credentials for Google Cloud Storage: File .*nothing\.json was not found.* Set GOOGLE_APPLICATION_CRED"
    with pytest.raises(StoreAwayError, match=words):
        restarted.fetch("churn", "2")
    with pytest.raises(StoreAwayError, match=words):
        ModelStore("gs://models", cache=tmp_path / "empty").models()


def test_a_machine_without_a_metadata_server_is_not_waited_for(
    nobody: None, server: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.line, "silent", True)
    monkeypatch.setenv("GCE_METADATA_IP", server.line.url.removeprefix("http://"))
    monkeypatch.setattr(_metadata.ping, "__defaults__", (0.1, 1))  # seconds and attempts: Google's are 3 and 3
    before = server.line.connections
    with pytest.raises(StoreAwayError, match=r"no credentials for Google Cloud Storage: Your default credentials were"):
        ModelStore("gs://models", cache=tmp_path / "cache").fetch("churn", "1")
    assert server.line.connections == before + 1


@pytest.mark.parametrize(("url", "library"), [("gs://models", "gcsfs"), ("s3://models", "s3fs")])
def test_a_bucket_whose_library_is_missing_names_the_extra(
    url: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme = url.partition(":")[0]
    for module in [name for name in sys.modules if name.partition(".")[0] == library or name == "models.gcs"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    with pytest.raises(
        ModelError, match=rf"model store {url}: it needs the extra {scheme} \(pip install -e '\.\[{scheme}\]'\)"
    ):
        ModelStore(url)
