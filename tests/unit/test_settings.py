"""What a worker is told when its environment is wrong."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from core.errors import SettingsError
from core.settings import Settings


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("PARTITIONS", "none", "HOMUNCULUS_PARTITIONS"),
        ("APP_ID", "..", "HOMUNCULUS_APP_ID"),
        ("COMMIT_INTERVAL", "inf", "HOMUNCULUS_COMMIT_INTERVAL"),
        ("MAX_RECORD", "1", "HOMUNCULUS_MAX_RECORD"),
        ("WEB_BIND", "everywhere", "HOMUNCULUS_WEB_BIND"),
        ("OTLP_ENDPOINT", "collector", "HOMUNCULUS_OTLP_ENDPOINT"),
        ("PARTITION", "8", "did you mean HOMUNCULUS_PARTITIONS?"),
        ("CANARY", "1", "HOMUNCULUS_CANARY is not a setting"),
    ],
)
def test_what_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str) -> None:
    monkeypatch.setenv(f"HOMUNCULUS_{variable}", value)
    with pytest.raises(SettingsError, match=told.replace("?", r"\?")):
        Settings.read()


@pytest.mark.parametrize(("value", "ttl"), [("3600", timedelta(hours=1)), ("P30D", timedelta(days=30))])
def test_a_ttl_is_seconds_or_a_duration(monkeypatch: pytest.MonkeyPatch, value: str, ttl: timedelta) -> None:
    monkeypatch.setenv("HOMUNCULUS_SESSION_TTL", value)
    assert Settings.read().session_ttl == ttl


def test_nothing_set_is_a_worker_with_its_own_broker_on_loopback() -> None:
    settings = Settings.read()
    assert settings.embedded
    assert settings.web_bind.is_loopback


@pytest.mark.parametrize("name", ["BROKER_PASSWORD", "BROKER_KEY_PASSWORD", "WEB_TOKEN", "WEB_READ_TOKEN"])
def test_a_secret_may_be_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    variable, file = f"HOMUNCULUS_{name}", tmp_path / "secret"
    monkeypatch.setenv(f"{variable}_FILE", str(file))
    with pytest.raises(SettingsError, match=f"{variable}_FILE is {file}, which can't be read"):
        Settings.read()
    file.write_text("")
    with pytest.raises(SettingsError, match="which is empty"):
        Settings.read()
    file.write_text(" tin whistle \n")
    assert getattr(Settings.read(), name.lower()).get_secret_value() == " tin whistle "
    monkeypatch.setenv(variable, "hush")
    with pytest.raises(SettingsError, match="keep one of them") as refused:
        Settings.read()
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("kafka+sasl_ssl://ann:h%75sh@one:9092,two:9092", "kafka+sasl_ssl://ann@one:9092,two:9092"),
        ("kafka+sasl_ssl://ann:hush@one?ssl_cafile=/a@b:c", "kafka+sasl_ssl://ann@one?ssl_cafile=/a@b:c"),
        ("ann:hush@one", "ann@one"),
        ("kafka+ssl://one:9092?ssl_cafile=/a@b:c", "kafka+ssl://one:9092?ssl_cafile=/a@b:c"),
    ],
)
def test_the_password_does_not_stay_in_the_brokers_url(url: str, kept: str) -> None:
    settings = Settings(broker=url)
    assert settings.broker == kept
    assert "hush" not in repr(settings)
    if "ann" in url:
        assert settings.broker_password is not None
        assert settings.broker_password.get_secret_value() == "hush"


def test_what_is_wrong_is_told_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMUNCULUS_BROKER", "kafka+sasl_ssl://ann:hush@one")
    monkeypatch.setenv("HOMUNCULUS_WEB_TOKEN", "hush")
    monkeypatch.setenv("HOMUNCULUS_PARTITIONS", "none")
    with pytest.raises(SettingsError, match="HOMUNCULUS_PARTITIONS") as refused:
        Settings.read()
    assert "hush" not in str(refused.value)


def test_names_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMUNCULUS_TRACE_ATTRIBUTES", " tenant, order.channel,,")
    assert Settings.read().trace_attributes == ("tenant", "order.channel")
