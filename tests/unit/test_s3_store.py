"""A model store in a bucket, on a server that speaks S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto import server

from core.errors import ManifestError, ModelNotFoundError, StoreAwayError, TamperedError
from models import download, store
from models.store import ModelStore
from tests.unit.graphs import folder, linear


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Moto, as a server on 127.0.0.1."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in (("ACCESS_KEY_ID", "k"), ("SECRET_ACCESS_KEY", "s"), ("DEFAULT_REGION", "eu-central-1")):
            environment.setenv(f"AWS_{name}", value)
        running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        running.start()
        host, port = running.get_host_and_port()
        environment.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        boto3.client("s3").create_bucket(
            Bucket="models", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
        )
        yield f"http://{host}:{port}"
        running.stop()


def test_a_version_in_a_bucket_is_published_listed_fetched_and_harm_is_told(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PAUSES", [0.0])
    monkeypatch.setattr(store, "PAUSES", [0.0])
    monkeypatch.setattr(download, "PIECE", 100)  # a model of several pieces
    bucket = boto3.client("s3")
    url = "s3://models/ours"
    ours = ModelStore(url, cache=tmp_path / "cache")
    assert ours.models() == []
    with pytest.raises(ModelNotFoundError, match="versions there: none"):
        ours.fetch("churn", "1")
    for version in ("1", "2"):
        ours.publish(folder(tmp_path / "made", linear(w=int(version)), version=version))
    assert (ours.models(), ours.versions("churn")) == (["churn"], ["1", "2"])
    index = bucket.get_object(Bucket="models", Key="ours/index.json")["Body"].read()
    assert b'"churn"' in index

    calls: list[tuple[int, int | None]] = []
    fresh = ModelStore(url, cache=tmp_path / "fresh")
    fetched = fresh.fetch("churn", "1", lambda here, total: calls.append((here, total)))
    assert fetched.onnx.read_bytes() == linear().SerializeToString()
    size = fetched.onnx.stat().st_size
    assert calls[-1] == (size, size)
    assert len(calls) > size // 100

    bucket.put_object(Bucket="models", Key="ours/churn/2/model.onnx", Body=b"other")
    with pytest.raises(TamperedError, match=r"churn@2: model\.onnx has sha256 .* \(5 bytes\)"):
        fresh.fetch("churn", "2")
    bucket.delete_object(Bucket="models", Key="ours/churn/2/model.onnx")
    with pytest.raises(ManifestError, match=r"churn@2: model\.onnx is listed in manifest\.json, but missing"):
        fresh.fetch("churn", "2")


def test_while_the_bucket_is_away_what_is_cached_still_loads(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PAUSES", [])
    ours = ModelStore("s3://models/away", cache=tmp_path / "cache")
    published = ours.publish(folder(tmp_path / "made", linear()))

    def away(*_: object, **__: object) -> bytes:
        raise OSError("Connect timeout")

    for question in ("info", "cat_file"):
        monkeypatch.setattr(ours._fs, question, away)
    assert ours.fetch("churn", "1") == published
    with pytest.raises(StoreAwayError, match=r"churn@2: .*Connect timeout"):
        ours.fetch("churn", "2")
