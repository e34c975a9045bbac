"""What a model store promises in any bucket: inherited, with a real server, by a class for each kind of bucket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.errors import ManifestError, ModelNotFoundError, StoreAwayError, TamperedError
from models import download, store
from models.features import parse
from models.store import ModelStore
from tests.unit.graphs import folder, linear
from tests.unit.line import Line

PIECE = 100
"""Bytes of one request: the models of these tests have several."""


class Bucket(ABC):
    """A bucket on a server of this machine, behind a line that can be cut, and what its owner may do beside us."""

    url: str
    line: Line

    @abstractmethod
    def get(self, key: str) -> bytes: ...

    @abstractmethod
    def put(self, key: str, content: bytes) -> None: ...

    @abstractmethod
    def delete(self, key: str) -> None: ...

    @abstractmethod
    def keys(self) -> list[str]: ...

    def clear(self) -> None:
        self.line.mend()
        for key in self.keys():
            self.delete(key)


class BucketStore:
    """Needs a fixture `server`: a bucket for all tests of the class."""

    @pytest.fixture
    def bucket(self, server: Bucket) -> Iterator[Bucket]:
        yield server
        server.clear()

    @pytest.fixture(autouse=True)
    def in_pieces_and_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (download, store):
            monkeypatch.setattr(module, "PAUSES", [0.0])
        monkeypatch.setattr(download, "PIECE", PIECE)

    def test_a_version_is_published_listed_and_fetched(self, bucket: Bucket, tmp_path: Path) -> None:
        url = f"{bucket.url}/ours"
        ours = ModelStore(url, cache=tmp_path / "cache")
        assert ours.models() == []
        with pytest.raises(ModelNotFoundError, match="versions there: none"):
            ours.fetch("churn", "1")
        for version in ("1", "2"):
            ours.publish(folder(tmp_path / "made", linear(w=int(version)), version=version))
        assert (ours.models(), ours.versions("churn")) == (["churn"], ["1", "2"])
        assert b'"churn"' in bucket.get("ours/index.json")

        calls: list[tuple[int, int | None]] = []
        fresh = ModelStore(url, cache=tmp_path / "fresh")
        fetched = fresh.fetch("churn", "1", lambda here, total: calls.append((here, total)))
        assert fetched.onnx.read_bytes() == linear().SerializeToString()
        size = fetched.onnx.stat().st_size
        assert calls[-1] == (size, size)
        assert len(calls) > size // PIECE

    def test_what_was_changed_or_deleted_there_is_told_with_version_and_file(
        self, bucket: Bucket, tmp_path: Path
    ) -> None:
        ours = ModelStore(bucket.url, cache=tmp_path / "cache")
        ModelStore(bucket.url).publish(folder(tmp_path / "made", linear()))
        bucket.put("churn/1/model.onnx", b"other")
        with pytest.raises(TamperedError, match=r"churn@1: model\.onnx has sha256 .* \(5 bytes\)"):
            ours.fetch("churn", "1")
        bucket.delete("churn/1/model.onnx")
        with pytest.raises(ManifestError, match=r"churn@1: model\.onnx is listed in manifest\.json, but missing"):
            ours.fetch("churn", "1")
        bucket.delete("churn/1/manifest.json")
        with pytest.raises(ModelNotFoundError, match="versions there: none"):
            ours.fetch("churn", "1")

    def test_what_is_deleted_while_it_is_copied_is_missing(self, bucket: Bucket, tmp_path: Path) -> None:
        ModelStore(bucket.url).publish(folder(tmp_path / "made", linear()))
        seen: list[int] = []

        def progress(here: int, _: int | None) -> None:
            seen.append(here)
            if here == 2 * PIECE:
                bucket.delete("churn/1/model.onnx")

        with pytest.raises(ManifestError, match=r"churn@1: model\.onnx is listed in manifest\.json, but missing"):
            ModelStore(bucket.url, cache=tmp_path / "cache").fetch("churn", "1", progress)
        assert seen == [0, PIECE, 2 * PIECE]

    def test_a_copy_that_the_line_cut_goes_on_where_it_was_in_the_next_process(
        self, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(download, "PIECE", 40_000)
        made = folder(tmp_path / "made", linear(w=0.5, width=50_000))  # 200 KB of weights
        whole = ModelStore(bucket.url).publish(made).onnx.read_bytes()
        cache, line = tmp_path / "cache", bucket.line
        line.cut(after=130_000)
        with pytest.raises(StoreAwayError, match=r"churn@1: model\.onnx can't be copied: .* are kept"):
            ModelStore(bucket.url, cache=cache).fetch("churn", "1")
        kept = next(cache.rglob("*.part")).stat().st_size
        assert kept in (80_000, 120_000)  # whole pieces; the list and the manifest came before
        line.mend()
        before = line.sent
        assert ModelStore(bucket.url, cache=cache).fetch("churn", "1").onnx.read_bytes() == whole
        assert line.sent - before < len(whole) - kept + 20_000

    def test_while_the_bucket_is_away_what_is_cached_still_loads(self, bucket: Bucket, tmp_path: Path) -> None:
        made = folder(tmp_path / "made", linear(), inputs={"X": {"fields": ["session.count"]}})
        known = ModelStore(bucket.url, cache=tmp_path / "cache").publish(made)
        bucket.line.cut()
        restarted = ModelStore(bucket.url, cache=tmp_path / "cache")
        assert restarted.fetch("churn", "1") == known
        assert (restarted.models(), restarted.versions("churn")) == (["churn"], ["1"])
        assert restarted.needed() == {parse("session.count")}
        with pytest.raises(StoreAwayError, match=r"churn@2: the model store .* can't be used"):
            restarted.fetch("churn", "2")
        empty = ModelStore(bucket.url, cache=tmp_path / "empty")
        for question in (empty.models, empty.needed):  # away isn't empty
            with pytest.raises(StoreAwayError):
                question()
        bucket.line.mend()
        assert empty.models() == ["churn"]

    def test_a_silent_server_is_waited_for_with_a_limit(
        self, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = ModelStore(bucket.url, cache=tmp_path / "cache").publish(folder(tmp_path / "made", linear()))
        monkeypatch.setattr(store, "_PATIENCE_S", 0.05)
        bucket.line.silent = True
        restarted = ModelStore(bucket.url, cache=tmp_path / "cache")
        assert restarted.fetch("churn", "1") == known
        assert restarted.models() == ["churn"]
        with pytest.raises(StoreAwayError, match=r"can't be used: no answer within 0\.05 s"):
            restarted.fetch("churn", "2")
