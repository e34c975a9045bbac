"""The model store: a version is found whole and unharmed, or not at all; wherever the store is."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import fsspec
import onnx
import pytest

from core.errors import ManifestError, ModelError, ModelNotFoundError, TamperedError
from models.external import external_files
from models.features import parse
from models.store import ModelStore
from tests.unit.graphs import folder, linear, lookup, manifest, seal


def with_external_data(root: Path, location: str = "weights.bin") -> Path:
    """A version whose weights lie in a file of their own, as large models have them."""
    path = folder(root, linear(w=0.5, width=400))
    onnx.save_model(
        linear(w=0.5, width=400),
        path / "model.onnx",
        save_as_external_data=True,
        location=location,
        size_threshold=100,
    )
    seal(path, manifest())
    return path


@pytest.mark.parametrize("make", ["missing", "empty"])
def test_a_store_may_be_empty_or_not_there_yet(make: str, tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store" if make == "missing" else tmp_path))
    assert store.models() == []
    assert store.versions("churn") == []
    assert store.needed() == frozenset()
    with pytest.raises(ModelNotFoundError, match=r"churn@1 .*versions there: none"):
        store.fetch("churn", "1")


def test_models_and_versions_are_listed_in_order_and_clutter_is_not(tmp_path: Path) -> None:
    for version in ("10", "9", "1.2", "1.10"):
        folder(tmp_path, linear(), version=version)
    folder(tmp_path, linear(), name="apples")
    (tmp_path / "churn" / "draft").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "README").write_text("models")
    store = ModelStore(str(tmp_path))
    assert store.models() == ["apples", "churn"]
    assert store.versions("churn") == ["1.2", "1.10", "9", "10"]


def test_a_fetched_version_is_where_the_store_has_it_and_its_identity_is_its_bytes(tmp_path: Path) -> None:
    path = folder(tmp_path, linear())
    first = ModelStore(f"file://{tmp_path}").fetch("churn", "1")
    assert first.path == path
    assert first.onnx.read_bytes() == linear().SerializeToString()
    folder(tmp_path, linear(w=0.5))
    assert ModelStore(str(tmp_path)).fetch("churn", "1").sha256 != first.sha256


@pytest.mark.parametrize("name", ["../churn", "", ".", "..", "a/b", "/etc", "churn\n", "-x"])
def test_names_that_are_not_plain_reach_no_file(name: str, tmp_path: Path) -> None:
    folder(tmp_path, linear())
    store = ModelStore(str(tmp_path / "churn"))
    with pytest.raises(ModelNotFoundError):
        store.fetch(name, "1")
    with pytest.raises(ModelNotFoundError):
        store.fetch("churn", name)
    assert store.versions(name) == []


def test_an_unknown_version_is_told_with_those_that_exist(tmp_path: Path) -> None:
    folder(tmp_path, linear())
    with pytest.raises(ModelNotFoundError, match=r"churn@2 .*versions there: 1"):
        ModelStore(str(tmp_path)).fetch("churn", "2")


def test_a_changed_byte_is_told_with_its_file(tmp_path: Path) -> None:
    path = folder(tmp_path, linear())
    (path / "model.onnx").write_bytes(linear(w=0.9).SerializeToString())
    with pytest.raises(TamperedError, match=r"churn@1: model\.onnx has sha256"):
        ModelStore(str(tmp_path)).fetch("churn", "1")


def test_a_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    shutil.copytree(folder(tmp_path, linear()), tmp_path / "churn" / "2")
    with pytest.raises(ManifestError, match=r"churn@2: manifest\.json is that of churn@1"):
        ModelStore(str(tmp_path)).fetch("churn", "2")


def test_a_listed_file_that_is_missing_is_told(tmp_path: Path) -> None:
    path = folder(tmp_path, linear())
    seal(path, manifest(files={"model.onnx": "0" * 64, "vocabulary.txt": "0" * 64}))
    with pytest.raises(ManifestError, match=r"churn@1: vocabulary\.txt is listed .* missing"):
        ModelStore(str(tmp_path)).fetch("churn", "1")


def test_a_file_that_is_not_listed_is_told(tmp_path: Path) -> None:
    path = folder(tmp_path, linear())
    (path / "extra").mkdir()
    (path / "extra" / "evil.so").write_bytes(b"\x7fELF")
    with pytest.raises(ManifestError, match=r"churn@1: extra/evil\.so isn't listed"):
        ModelStore(str(tmp_path)).fetch("churn", "1")


@pytest.mark.parametrize("file", ["../other.bin", "/etc/passwd", "a/../b", "a//b", "./a", "C:\\a", "a\\b", "b/"])
def test_a_listed_path_that_leaves_the_folder_is_refused(file: str, tmp_path: Path) -> None:
    path = folder(tmp_path, linear())
    said = json.loads((path / "manifest.json").read_text())
    said["files"][file] = "0" * 64
    (path / "manifest.json").write_text(json.dumps(said))
    with pytest.raises(TamperedError, match=r"churn@1: .*leaves the folder"):
        ModelStore(str(tmp_path)).fetch("churn", "1")


@pytest.mark.parametrize("target", ["file", "folder"])
def test_a_link_that_leaves_the_folder_is_refused(target: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "store", linear())
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    (path / "link").symlink_to(tmp_path / "secret" / ("key" if target == "file" else ""))
    with pytest.raises(TamperedError, match="churn@1: link is a link that leaves the folder"):
        ModelStore(str(tmp_path / "store")).fetch("churn", "1")


def test_a_link_within_the_folder_is_a_file_like_any_other(tmp_path: Path) -> None:
    path = folder(tmp_path, linear())
    (path / "model.onnx").rename(path / "weights")
    (path / "model.onnx").symlink_to("weights")
    seal(path, manifest())
    assert ModelStore(str(tmp_path)).fetch("churn", "1").manifest.files.keys() == {"model.onnx", "weights"}


def test_external_data_is_found_and_must_be_listed(tmp_path: Path) -> None:
    path = with_external_data(tmp_path)
    store = ModelStore(str(tmp_path))
    assert external_files(path / "model.onnx") == {"weights.bin"}
    assert set(store.fetch("churn", "1").manifest.files) == {"model.onnx", "weights.bin"}
    (path / "weights.bin").unlink()
    seal(path, manifest())
    with pytest.raises(TamperedError, match=r"churn@1: model\.onnx reads 'weights\.bin', which manifest\.json doesn't"):
        store.fetch("churn", "1")


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/passwd"])
@pytest.mark.parametrize("where", ["initializer", "attribute", "subgraph", "function"])
def test_external_data_outside_the_folder_is_refused_wherever_the_graph_names_it(
    where: str, location: str, tmp_path: Path
) -> None:
    evil = onnx.TensorProto(name="evil", data_type=onnx.TensorProto.FLOAT, dims=[1])
    evil.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", location)):
        evil.external_data.add(key=key, value=value)
    constant = onnx.helper.make_node("Constant", [], ["e"], value=evil)
    model = linear()
    match where:
        case "initializer":
            model.graph.initializer.append(evil)
        case "attribute":
            model.graph.node.append(constant)
        case "subgraph":
            branch = onnx.helper.make_graph([constant], "branch", [], [])
            model.graph.node.append(onnx.helper.make_node("If", ["c"], ["r"], then_branch=branch, else_branch=branch))
        case "function":
            model.functions.append(onnx.helper.make_function("d", "f", [], ["e"], [constant], []))
    folder(tmp_path, model)
    with pytest.raises(TamperedError, match=r"churn@1: model\.onnx reads .* leaves the folder"):
        ModelStore(str(tmp_path)).fetch("churn", "1")


@pytest.mark.parametrize("model", [lookup([[0.5, 0.5]]), linear(width=300)])
def test_a_model_in_one_file_reads_no_other(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = folder(tmp_path, model)
    assert external_files(path / "model.onnx") == frozenset()


@pytest.mark.parametrize("raw", [b"", b"not an onnx model", b"\x3a\xff\xff\xff\xff\x0f", b"\x3a", b"\xff" * 30])
def test_what_is_no_onnx_model_is_told(raw: bytes, tmp_path: Path) -> None:
    folder(tmp_path, raw)
    with pytest.raises(ManifestError, match=r"churn@1: model\.onnx"):
        ModelStore(str(tmp_path)).fetch("churn", "1")


def test_needed_is_what_all_versions_ask_for_and_a_broken_one_is_left_out_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for version, fields in (("1", ["value", "session.count"]), ("2", ["session.mean.value", "session.count"])):
        folder(tmp_path, linear(width=2), version=version, inputs={"X": {"fields": fields}})
    folder(tmp_path, linear(), version="3", labels=[])
    needed = ModelStore(str(tmp_path)).needed()
    assert needed == {parse("session.count"), parse("session.mean.value")}
    assert "churn@3" in caplog.text


@pytest.fixture
def remote() -> str:
    """An fsspec store that isn't a local folder."""
    return f"memory://store-{uuid.uuid4().hex}"


def test_a_published_version_is_listed_and_fetched_from_any_store(remote: str, tmp_path: Path) -> None:
    path = with_external_data(tmp_path / "made")
    for url in (remote, str(tmp_path / "local")):
        store = ModelStore(url, cache=tmp_path / "cache")
        published = store.publish(path)
        assert (store.models(), store.versions("churn")) == (["churn"], ["1"])
        fetched = store.fetch("churn", "1")
        assert fetched == published
        assert (fetched.path / "weights.bin").read_bytes() == (path / "weights.bin").read_bytes()
        assert store.publish(path) == published


def test_a_version_never_changes(remote: str, tmp_path: Path) -> None:
    for url in (remote, str(tmp_path / "local")):
        store = ModelStore(url, cache=tmp_path / "cache")
        store.publish(folder(tmp_path / "a", linear()))
        with pytest.raises(ModelError, match="churn@1 is in the model store with other content"):
            store.publish(folder(tmp_path / "b", linear(w=0.5)))
        assert store.fetch("churn", "1").onnx.read_bytes() == linear().SerializeToString()


def test_what_is_not_sound_is_not_published(remote: str, tmp_path: Path) -> None:
    path = folder(tmp_path, linear())
    (path / "model.onnx").write_bytes(b"other")
    with pytest.raises(TamperedError):
        ModelStore(remote).publish(path)
    assert ModelStore(remote).models() == []


def test_a_remote_version_that_was_tampered_with_leaves_nothing_in_the_cache(remote: str, tmp_path: Path) -> None:
    store = ModelStore(remote, cache=tmp_path / "cache")
    store.publish(folder(tmp_path, linear()))
    shutil.rmtree(tmp_path / "cache")
    fsspec.filesystem("memory").pipe_file(f"{remote}/churn/1/model.onnx", b"other")
    with pytest.raises(TamperedError, match=r"churn@1: model\.onnx"):
        store.fetch("churn", "1")
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


def test_a_damaged_copy_in_the_cache_is_made_anew(remote: str, tmp_path: Path) -> None:
    store = ModelStore(remote, cache=tmp_path / "cache")
    copy = store.publish(folder(tmp_path, linear()))
    copy.onnx.write_bytes(b"damaged")
    assert store.fetch("churn", "1").onnx.read_bytes() == linear().SerializeToString()


def test_a_remote_store_without_a_cache_copies_to_a_folder_of_its_own(remote: str, tmp_path: Path) -> None:
    copy = ModelStore(remote).publish(folder(tmp_path, linear()))
    assert copy.path.is_dir()
    assert not copy.path.is_relative_to(tmp_path)
    shutil.rmtree(copy.path.parents[1])


@pytest.mark.parametrize("url", ["nosuch://store/models"])
def test_a_store_that_cannot_be_opened_is_told(url: str) -> None:
    with pytest.raises(ModelError, match="nosuch"):
        ModelStore(url)


def test_a_store_out_of_reach_is_a_model_error_and_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ModelStore(str(tmp_path))

    def unreachable(*_: Any, **__: Any) -> bool:
        raise OSError("connection refused")

    monkeypatch.setattr(store._fs, "isdir", unreachable)
    with pytest.raises(ModelError, match=r"churn@1: .*connection refused"):
        store.fetch("churn", "1")
