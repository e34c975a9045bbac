"""Spans reach a real collector by either way of OTLP, and a way that there is not is named."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from opentelemetry.context import Context

from core.errors import SettingsError
from core.settings import Settings
from engine.app import tracer
from engine.spans import FLUSH_S, PROTOCOL, Tracer
from tests.otlp import collector
from tests.worker import until


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own variables don't count."""
    for variable in PROTOCOL:
        monkeypatch.delenv(variable, raising=False)


def settings(endpoint: str) -> Settings:
    return Settings(otlp_endpoint=cast(Any, endpoint))


@pytest.mark.parametrize(
    ("by", "said"),
    [("http", None), ("http", "http/protobuf"), ("grpc", "grpc")],
)
async def test_spans_reach_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: Literal["http", "grpc"], said: str | None
) -> None:
    if said is not None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", said)
    with collector(tmp_path, by) as found:
        sending = Tracer.to_collector(settings(found.url), "w1")
        sending.start("process orders", Context(), [], {"homunculus.sources": ["orders/0/0-2"]}).end()
        await sending.close()
        until(lambda: found.spans, 10, what="the collector has the span")
        [span] = found.spans
    assert span["name"] == "process orders"
    assert span["attributes"]["homunculus.sources"] == ["orders/0/0-2"]
    assert span["resource"]["service.instance.id"] == "w1"


async def test_the_variable_for_traces_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    with collector(tmp_path, "grpc") as found:
        sending = Tracer.to_collector(settings(found.url), "w1")
        sending.start("one", Context(), [], {}).end()
        await sending.close()
        until(lambda: found.spans, 10, what="the collector has the span")


async def test_a_collector_that_is_away_does_not_keep_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    sending = Tracer.to_collector(settings("http://127.0.0.1:9"), "w1")
    sending.start("lost", Context(), [], {}).end()
    began = time.monotonic()
    await sending.close()
    assert time.monotonic() - began < FLUSH_S + 2


@pytest.mark.parametrize("variable", PROTOCOL)
def test_another_protocol_is_refused_with_its_variable(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "http/json")
    with pytest.raises(SettingsError, match=rf"{variable} is 'http/json'.*http/protobuf.*grpc"):
        tracer(settings("http://127.0.0.1:9"), "w1")


def test_a_path_does_not_go_with_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(SettingsError, match=r"HOMUNCULUS_OTLP_ENDPOINT has the path /v1/traces.*:4317"):
        tracer(settings("http://127.0.0.1:4318/v1/traces"), "w1")


def test_a_missing_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    with pytest.raises(SettingsError, match=r"opentelemetry.*grpc.*the extra `otel`"):
        tracer(settings("http://127.0.0.1:4317"), "w1")
