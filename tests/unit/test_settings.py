"""What a worker is told when its environment is wrong."""

from __future__ import annotations

from datetime import timedelta

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
        ("PARTITION", "8", "did you mean HOMUNCULUS_PARTITIONS?"),
        ("STANDBYS", "1", "HOMUNCULUS_STANDBYS is not a setting"),
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
