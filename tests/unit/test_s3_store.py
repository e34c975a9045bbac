"""A model store in a bucket, on a server that speaks S3."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
import s3fs
from moto.server import ThreadedMotoServer

from tests.unit.bucket_store import Bucket, BucketStore
from tests.unit.line import Line

ENVIRONMENT = {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "DEFAULT_REGION": "us-east-1", "MAX_ATTEMPTS": "1"}


class Amazon(Bucket):
    url = "s3://models"

    def __init__(self, line: Line) -> None:
        self.line = line
        self._client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{line.far}")  # past the line
        self._client.create_bucket(Bucket="models")

    def get(self, key: str) -> bytes:
        return bytes(self._client.get_object(Bucket="models", Key=key)["Body"].read())

    def put(self, key: str, content: bytes) -> None:
        self._client.put_object(Bucket="models", Key=key, Body=content)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket="models", Key=key)

    def keys(self) -> list[str]:
        return [entry["Key"] for entry in self._client.list_objects_v2(Bucket="models").get("Contents", ())]


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    """Moto, on 127.0.0.1."""
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    with pytest.MonkeyPatch.context() as patch, Line(running.get_host_and_port()[1]) as line:
        for name, value in ENVIRONMENT.items():
            patch.setenv(f"AWS_{name}", value)
        patch.setenv("AWS_ENDPOINT_URL", line.url)
        patch.setattr(s3fs.S3FileSystem, "retries", 1)
        yield Amazon(line)
        line.shutdown()
    running.stop()


class TestS3(BucketStore):
    """On moto."""
