"""The broker's URL: every client, Faust's own producer too, is told of it the same way."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from core.errors import SettingsError
from core.settings import Settings
from engine.app import App
from engine.connection import client_options, connect
from models.device import Device
from models.inference import InferenceThread
from models.live import LiveModels
from models.store import ModelStore


def application(folder: Path, url: str) -> App:
    settings = Settings(broker=url, data_dir=folder, model_store=str(folder / "store"))
    models = LiveModels(ModelStore(settings.model_store), Device.of("cpu"), InferenceThread())
    return App(settings, models, [], [])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("kafka://one:9092,two:9093", {"security_protocol": "PLAINTEXT"}),
        ("kafka+ssl://one:9092,two:9093", {"security_protocol": "SSL"}),
        (
            "kafka+sasl_ssl://ann:p%40ss@one:9092,two:9093?sasl_mechanism=SCRAM-SHA-512",
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_plain_username": "ann",
                "sasl_plain_password": "p@ss",
            },
        ),
        (
            "kafka+sasl_plaintext://ann:pass@one:9092,two:9093",
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "ann",
                "sasl_plain_password": "pass",
            },
        ),
    ],
)
def test_fausts_own_producer_reaches_the_broker_as_ours_do(tmp_path: Path, url: str, expected: dict[str, Any]) -> None:
    producer: Any = application(tmp_path, url).producer
    fausts = {**producer._settings_default(), **producer._settings_auth()}
    context = fausts.pop("ssl_context", None)
    assert fausts["bootstrap_servers"] == ["one:9092", "two:9093"]
    assert expected.items() <= fausts.items()
    assert isinstance(context, ssl.SSLContext) == url.startswith(("kafka+ssl", "kafka+sasl_ssl"))
    bootstrap, security = client_options(url)
    ours = {"security_protocol": "PLAINTEXT", "ssl_context": context} | security
    assert bootstrap == "one:9092,two:9093"
    assert ours == expected | {"ssl_context": ours["ssl_context"]}


async def test_what_faust_is_told_its_client_takes(tmp_path: Path) -> None:
    url = "kafka+sasl_ssl://ann:pass@127.0.0.1:9?sasl_mechanism=SCRAM-SHA-256"
    producer: Any = application(tmp_path, url).producer
    client: AIOKafkaProducer = producer._new_producer()
    assert client.client._sasl_mechanism == "SCRAM-SHA-256"
    assert client.client._ssl_context is not None
    await client.stop()


def test_an_unknown_mechanism_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="sasl_mechanism 'MAGIC'"):
        application(tmp_path, "kafka+sasl_ssl://ann:pass@one:9092?sasl_mechanism=MAGIC")


@pytest.mark.parametrize("url", ["kafka+sasl-ssl://ann:hush@one:9092", "ann:hush@one:9092", "http://ann:h/us@h@one"])
def test_a_url_that_is_wrong_is_told_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError, match="HOMUNCULUS_BROKER") as refused:
        client_options(url)
    assert "hush" not in str(refused.value)
    assert "us@h" not in str(refused.value)


@pytest.mark.parametrize("compression", ["lz4", "snappy", "zstd"])
async def test_a_compression_whose_package_is_missing_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, compression: Any
) -> None:
    monkeypatch.setattr("aiokafka.codec.cramjam", None)
    with pytest.raises(SettingsError, match=f"{compression}, which needs the package cramjam"):
        await connect(Settings(compression=compression), "kafka://127.0.0.1:9")
