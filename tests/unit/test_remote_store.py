"""Model stores behind HTTP and S3: a version comes whole and unharmed, however often the line breaks, or not at all."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import onnx
import pytest

from core.errors import ManifestError, ModelError, ModelNotFoundError, StoreAwayError, TamperedError
from models import download
from models import manifest as manifest_module
from models import store as store_module
from models.cache import ModelCache
from models.features import parse
from models.store import ModelStore
from tests.unit.graphs import folder, linear, manifest, seal

WEIGHTS: Final = "weights.bin"
SIZE: Final = 400_000
"""Bytes of the weights."""
CUT: Final = 90_000


class Faulty(http.server.SimpleHTTPRequestHandler):
    """A web server with ranges, which can be told to break connections off."""

    server: Web

    def do_GET(self) -> None:
        web, file = self.server, Path(self.translate_path(self.path))
        span = self.headers.get("Range", "") if web.ranges else ""
        web.asked.append((self.path, self.headers.get("Range")))
        if web.password is not None and self.headers.get("Authorization") != web.password:
            self.send_error(401)
        elif web.down:
            self.send_error(503)
        elif not file.is_file():
            self.send_error(404)
        else:
            self._send(file, span)

    def _send(self, file: Path, span: str) -> None:
        web = self.server
        whole = file.read_bytes()
        begin = int(span.removeprefix("bytes=").removesuffix("-") or 0)
        if begin and begin >= len(whole):
            self.send_error(416)
            return
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(whole) - begin))
        if span:
            self.send_header("Content-Range", f"bytes {begin}-{len(whole) - 1}/{len(whole)}")
        self.end_headers()
        body = whole[begin:]
        if file.name == WEIGHTS and web.cuts:
            body = body[: web.cuts.pop(0)]
            self.close_connection = True
        web.sent[file.name] = web.sent.get(file.name, 0) + len(body)
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class Web(http.server.ThreadingHTTPServer):
    """Serves a folder on 127.0.0.1."""

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(Faulty, directory=str(root)))
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.ranges = True
        self.down = False
        self.password: str | None = None
        self.cuts: list[int] = []
        """After how many bytes each of the next answers with weights is broken off."""
        self.asked: list[tuple[str, str | None]] = []
        self.sent: dict[str, int] = {}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def web(root: Path) -> Iterator[Web]:
    root.mkdir()
    with Web(root) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many attempts as ever, without the pauses."""
    for module in (download, store_module):
        monkeypatch.setattr(module, "PAUSES", [0.0] * len(module.PAUSES))


def heavy(root: Path, version: str = "1", w: float = 0.5) -> Path:
    """A version with SIZE bytes of weights in a file of their own, put into the store by hand."""
    model = linear(w=w, width=SIZE // 4)
    path = folder(root, model, version=version)
    onnx.save_model(model, path / "model.onnx", save_as_external_data=True, location=WEIGHTS, size_threshold=100)
    seal(path, manifest(version=version))
    ModelStore(str(root)).index()
    return path


def told() -> tuple[list[tuple[int, int | None]], Any]:
    calls: list[tuple[int, int | None]] = []
    return calls, lambda here, total: calls.append((here, total))


def test_what_was_published_to_a_folder_is_listed_and_fetched_over_http(web: Web, root: Path, tmp_path: Path) -> None:
    made = folder(tmp_path / "made", linear(), inputs={"X": {"fields": ["session.mean.value"]}})
    published = ModelStore(str(root)).publish(made)
    store = ModelStore(web.url + "/", cache=tmp_path / "cache")
    assert (store.models(), store.versions("churn")) == (["churn"], ["1"])
    assert store.needed() == {parse("session.mean.value")}
    assert store.manifest("churn", "1") == published.manifest
    assert not (tmp_path / "cache").exists()
    fetched = store.fetch("churn", "1")
    assert fetched.sha256 == published.sha256
    assert fetched.path.is_relative_to(tmp_path / "cache")
    for read in (store.fetch, store.manifest):
        with pytest.raises(ModelNotFoundError, match=r"churn@2 .*versions there: 1"):
            read("churn", "2")


def test_pythons_own_web_server_will_do(root: Path, tmp_path: Path) -> None:
    heavy(root)
    plain = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    plain.keywords["directory"] = str(root)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), plain) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        store = ModelStore(f"http://127.0.0.1:{server.server_port}", cache=tmp_path / "cache")
        assert store.fetch("churn", "1").sha256 == ModelStore(str(root)).fetch("churn", "1").sha256
        server.shutdown()


def test_a_copy_that_breaks_off_goes_on_where_it_was_and_tells_how_far_it_is(
    web: Web, root: Path, tmp_path: Path
) -> None:
    path = heavy(root)
    web.cuts = [CUT] * 100
    calls, progress = told()
    fetched = ModelStore(web.url, cache=tmp_path / "cache").fetch("churn", "1", progress)
    assert (fetched.path / WEIGHTS).read_bytes() == (path / WEIGHTS).read_bytes()
    total = (path / WEIGHTS).stat().st_size + (path / "model.onnx").stat().st_size
    assert calls[-1] == (total, total)
    assert [here for here, _ in calls] == sorted(here for here, _ in calls)
    assert web.sent[WEIGHTS] <= SIZE + CUT  # one cut at most is sent twice
    assert len([asked for asked, _ in web.asked if asked.endswith(WEIGHTS)]) > SIZE // CUT
    quiet, progress = told()
    ModelStore(web.url, cache=tmp_path / "cache").fetch("churn", "1", progress)
    assert quiet == []  # nothing had to be copied


def test_a_server_without_ranges_sends_all_of_it_again(web: Web, root: Path, tmp_path: Path) -> None:
    path = heavy(root)
    web.ranges, web.cuts = False, [CUT, 100, 2 * CUT]
    fetched = ModelStore(web.url, cache=tmp_path / "cache").fetch("churn", "1")
    assert (fetched.path / WEIGHTS).read_bytes() == (path / WEIGHTS).read_bytes()


def test_a_line_that_always_breaks_is_given_up_and_the_next_call_goes_on_from_there(
    web: Web, root: Path, tmp_path: Path
) -> None:
    heavy(root)
    cache = tmp_path / "cache"
    web.cuts = [CUT] + [0] * 1000
    with pytest.raises(StoreAwayError, match=r"churn@1: weights\.bin can't be copied: .*6 times in a row"):
        ModelStore(web.url, cache=cache).fetch("churn", "1")
    kept = next(cache.rglob("*.part")).stat().st_size
    assert kept == CUT
    assert not list(cache.glob("*/churn/*"))  # no version that isn't whole
    web.cuts = []
    web.asked.clear()
    ModelStore(web.url, cache=cache).fetch("churn", "1")
    assert [span for path, span in web.asked if path.endswith(WEIGHTS)] == [f"bytes={kept}-"]


def test_the_beginning_of_something_else_is_thrown_away(web: Web, root: Path, tmp_path: Path) -> None:
    path = heavy(root)
    expected = json.loads((path / "manifest.json").read_text())["files"][WEIGHTS]
    store = ModelStore(web.url, cache=tmp_path / "cache")
    store.fetch("churn", "1")
    for junk in (b"x" * 5000, b"x" * (SIZE * 2)):
        whole = next((tmp_path / "cache").rglob(expected))
        whole.unlink()
        whole.with_suffix(".part").write_bytes(junk)
        fresh = next((tmp_path / "cache").glob("*/churn/*"))
        (fresh / "manifest.json").write_text("{}")
        assert (store.fetch("churn", "1").path / WEIGHTS).read_bytes() == (path / WEIGHTS).read_bytes()


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ("tampered", TamperedError, r"churn@1: weights\.bin has sha256 .*, but the manifest says"),
        ("truncated", TamperedError, r"churn@1: weights\.bin has sha256 .* \(1,000 bytes\)"),
        ("missing", ManifestError, r"churn@1: weights\.bin is listed in manifest\.json, but missing"),
        ("no manifest", ModelNotFoundError, r"churn@1 isn't in the model store"),
        ("manifest cut", ManifestError, r"churn@1: manifest\.json: "),
        ("another's manifest", ManifestError, r"churn@1: manifest\.json is that of churn@7"),
    ],
)
def test_what_is_harmed_on_the_server_is_told_with_version_and_file(
    fault: str, error: type[ModelError], says: str, web: Web, root: Path, tmp_path: Path
) -> None:
    path = heavy(root)
    match fault:
        case "tampered":
            (path / WEIGHTS).write_bytes(b"\0" * SIZE)
        case "truncated":
            (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:1000])
        case "missing":
            (path / WEIGHTS).unlink()
        case "no manifest":
            (path / "manifest.json").unlink()
        case "manifest cut":
            (path / "manifest.json").write_bytes((path / "manifest.json").read_bytes()[:-20])
        case _:
            seal(path, manifest(version="7"))
    with pytest.raises(error, match=says):
        ModelStore(web.url, cache=tmp_path / "cache").fetch("churn", "1")
    assert not list((tmp_path / "cache").glob("*/churn/*"))


def test_versions_that_share_a_file_share_its_copy(web: Web, root: Path, tmp_path: Path) -> None:
    heavy(root)
    model = folder(root, linear(w=0.5, width=SIZE // 4), version="2") / "model.onnx"
    model.write_bytes((root / "churn" / "1" / "model.onnx").read_bytes())
    (model.parent / WEIGHTS).write_bytes((root / "churn" / "1" / WEIGHTS).read_bytes())
    (model.parent / "note.txt").write_text("the same weights")
    seal(model.parent, manifest(version="2", thresholds={"low_confidence": 0.9}))
    store = ModelStore(web.url, cache=tmp_path / "cache")
    first = store.fetch("churn", "1")
    calls, progress = told()
    second = store.fetch("churn", "2", progress)
    assert (first.path / WEIGHTS).samefile(second.path / WEIGHTS)
    assert calls[-1] == (16, 16)  # the note alone
    assert web.sent[WEIGHTS] == SIZE


def test_while_the_store_is_away_what_is_cached_still_loads(
    web: Web, root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder(root, linear(), inputs={"X": {"fields": ["session.count"]}})
    folder(root, linear(), version="2")
    ModelStore(str(root)).index()
    cache = tmp_path / "cache"
    known = ModelStore(web.url, cache=cache).fetch("churn", "1")
    web.down = True
    for store in (ModelStore(web.url, cache=cache), ModelStore(web.url, cache=cache)):  # as after a restart
        assert store.fetch("churn", "1") == known
        assert (store.models(), store.versions("churn"), store.versions("other")) == (["churn"], ["1"], [])
        assert store.needed() == {parse("session.count")}
        with pytest.raises(StoreAwayError, match=r"churn@2: .*503"):
            store.fetch("churn", "2")
    assert "churn@1 is taken from the cache" in caplog.text
    with pytest.raises(StoreAwayError):
        ModelStore(web.url, cache=tmp_path / "empty").models()
    with pytest.raises(StoreAwayError):  # another store's cache says nothing of this one
        ModelStore(f"{web.url}/elsewhere", cache=cache).fetch("churn", "1")
    known.onnx.write_bytes(b"damaged")
    with pytest.raises(StoreAwayError):
        ModelStore(web.url, cache=cache).fetch("churn", "1")


def test_a_store_that_nobody_listens_at_is_away(tmp_path: Path) -> None:
    with pytest.raises(StoreAwayError, match=r"churn@1: the model store http://127\.0\.0\.1:9 can't be used"):
        ModelStore("http://127.0.0.1:9", cache=tmp_path).fetch("churn", "1")


def test_a_store_without_an_index_counts_as_empty_and_its_versions_can_be_fetched(
    web: Web, root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder(root, linear())
    store = ModelStore(web.url, cache=tmp_path / "cache")
    assert store.models() == []
    assert "models index" in caplog.text
    assert store.fetch("churn", "1").identity == "churn@1"
    index = ModelStore(str(root)).index()
    assert dict(index.models) == {"churn": ("1",)}
    assert store.models() == ["churn"]
    for odd in (b"<html>", b'{"models": {"../x": ["1"]}}', b'{"models": {"churn": "1"}}', b'{"format": 2}'):
        (root / "index.json").write_bytes(odd)
        with pytest.raises(ManifestError, match=r"index\.json: "):
            store.models()


def test_what_is_behind_a_web_server_is_read_only(web: Web, tmp_path: Path) -> None:
    store = ModelStore(web.url)
    with pytest.raises(ModelError, match="can only be read; publish to the folder or the bucket"):
        store.publish(folder(tmp_path / "made", linear()))
    with pytest.raises(ModelError, match="can only be read"):
        store.index()


def test_a_password_is_sent_and_never_shown(
    web: Web, root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heavy(root)
    caplog.set_level(logging.DEBUG, "models")
    web.password = "Basic " + base64.b64encode(b"ann:s3cr/t").decode()
    web.cuts = [CUT, CUT]
    url = web.url.replace("://", "://ann:s3cr%2Ft@")
    store = ModelStore(url, cache=tmp_path / "cache")
    assert store.fetch("churn", "1").identity == "churn@1"
    assert "s3cr" not in store.url + caplog.text
    for wrong in (web.url, web.url.replace("://", "://ann:wr0ng@")):
        with pytest.raises(StoreAwayError, match="401") as refused:
            ModelStore(wrong, cache=tmp_path / "other").fetch("churn", "1")
        assert "wr0ng" not in str(refused.value)


def test_a_file_that_another_worker_brings_meanwhile_is_not_fetched_again(tmp_path: Path) -> None:
    cache, text = ModelCache(tmp_path), b"weights"
    expected = hashlib.sha256(text).hexdigest()
    inside, go_on, downloads = threading.Event(), threading.Event(), []

    def slow(part: Path) -> None:
        downloads.append(part)
        inside.set()
        assert go_on.wait(10)
        part.write_bytes(text)

    first = threading.Thread(target=cache.place, args=(expected, tmp_path / "a", slow))
    second = threading.Thread(target=cache.place, args=(expected, tmp_path / "b", slow))
    first.start()
    assert inside.wait(10)
    second.start()
    go_on.set()
    first.join(10)
    second.join(10)
    assert len(downloads) == 1
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == text
    assert [path.name for path in (tmp_path / ".files").iterdir()] == [expected]


def test_a_manifest_or_a_list_that_is_too_long_is_not_read_to_its_end(
    web: Web, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ModelStore(str(root)).publish(folder(tmp_path / "made", linear(), made_by="x" * 5000))
    for module in (store_module, manifest_module):
        monkeypatch.setattr(module, "LARGEST", 4000)
    told = r"churn@1: manifest\.json: it has more than 0\.004 MB"
    for url in (web.url, str(root)):
        with pytest.raises(ManifestError, match=told):
            ModelStore(url, cache=tmp_path / "cache").fetch("churn", "1")
    with pytest.raises(ManifestError, match=r"^1: manifest\.json: it has more than 0\.004 MB"):
        ModelStore(f"memory://{root}").publish(root / "churn" / "1")
    assert ModelStore(str(root)).needed() == frozenset(), "such a version is left out, with a warning"
    monkeypatch.setattr(store_module, "LARGEST", 10)
    with pytest.raises(ManifestError, match=r"index\.json: it has more than"):
        ModelStore(web.url).models()
