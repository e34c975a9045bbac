"""How long certificates last, in files and on the wire, and what a doctor says of them. No Kafka, real certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography import x509
from trustme import CA

from cli import certificates as doctor
from cli.checks import FaultError, SoonError
from core.errors import SettingsError
from core.settings import Settings
from engine.app import App
from engine.certificates import Certificate, in_file
from tests.secured.certificates import Certificates, served
from tests.secured.test_admission import HOST, server


def app(**settings: Any) -> App:
    return cast(App, SimpleNamespace(settings=Settings(**settings)))


async def of_broker(certificates: Certificates, shown: Path, query: str = "") -> str:
    """What is said of a broker that shows this certificate."""
    async with server(served(shown)) as port:
        url = f"kafka+ssl://{HOST}:{port}?{query or f'ssl_cafile={certificates.authority}'}"
        return await doctor.of_brokers(app(broker=url), None)


async def of_web(certificates: Certificates, shown: Path) -> str:
    return await doctor.of_web(app(web_cert=shown, web_ca=certificates.authority))


Look = Callable[[Certificates, Path], Awaitable[str]]


@pytest.mark.parametrize("ends", [datetime(2049, 12, 31, tzinfo=UTC), datetime(2051, 3, 4, 5, 6, 7, tzinfo=UTC)])
def test_dates_are_those_that_openssl_reads(tmp_path: Path, ends: datetime) -> None:
    # Years from 2050 on are written in another form.
    issuer = CA().create_child_ca()
    made = issuer.issue_cert(HOST, not_before=datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC), not_after=ends)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(b"words before it\n" + b"".join(part.bytes() for part in made.cert_chain_pems))
    expected = [
        Certificate(one.not_valid_before_utc, one.not_valid_after_utc)
        for one in x509.load_pem_x509_certificates(chain.read_bytes())
    ]
    assert len(expected) == 2
    assert in_file(chain) == expected
    assert expected[0].ends == ends


@pytest.mark.parametrize("look", [of_broker, of_web])
async def test_a_certificate_with_time_left_is_well(certificates: Certificates, look: Look) -> None:
    assert "22 days left" in await look(certificates, certificates.server(HOST, days=23))


@pytest.mark.parametrize("look", [of_broker, of_web])
@pytest.mark.parametrize(("days", "left"), [(21, 20), (1, 0)])
async def test_three_weeks_before_its_end_it_is_to_be_renewed(
    certificates: Certificates, look: Look, days: int, left: int
) -> None:
    with pytest.raises(SoonError, match=f"runs out in {left} days, on 20.*: renew it"):
        await look(certificates, certificates.server(HOST, days=days))


@pytest.mark.parametrize(
    ("days", "on_the_wire", "in_a_file"),
    [
        (-1, "certificate has expired", "has run out on 20.*: renew it, and restart"),
        (90, "certificate is not yet valid", "is not valid before 20.*set this machine's clock"),
    ],
)
async def test_a_certificate_outside_its_time_is_a_fault(
    certificates: Certificates, days: int, on_the_wire: str, in_a_file: str
) -> None:
    shown = certificates.server(HOST, days=days)
    with pytest.raises(FaultError, match=on_the_wire):
        await of_broker(certificates, shown)
    with pytest.raises(FaultError, match=f"HOMUNCULUS_WEB_CERT={shown}.* {in_a_file}"):
        await of_web(certificates, shown)


async def test_our_own_certificate_for_the_broker_counts_too(certificates: Certificates) -> None:
    shown, ours = certificates.server(HOST), certificates.server("worker", days=5)
    query = f"ssl_cafile={certificates.authority}&ssl_certfile={ours}"
    with pytest.raises(SoonError, match=f"ssl_certfile={ours} runs out in 4 days"):
        await of_broker(certificates, shown, query)


async def test_a_broker_of_another_authority_or_name_is_a_fault(certificates: Certificates, tmp_path: Path) -> None:
    stranger = Certificates(tmp_path)
    with pytest.raises(FaultError, match=r"can't be trusted: .*by ssl_cafile"):
        await of_broker(certificates, stranger.server(HOST))
    with pytest.raises(FaultError, match=f"not valid for '{HOST}'"):
        await of_broker(certificates, certificates.server("elsewhere.example"))


async def test_a_broker_that_is_not_there_shows_no_certificate(certificates: Certificates) -> None:
    url = f"kafka+ssl://{HOST}:9?ssl_cafile={certificates.authority}"
    with pytest.raises(FaultError, match=f"{HOST}:9 shows no certificate"):
        await doctor.of_brokers(app(broker=url), None)


async def test_of_several_authorities_the_one_that_lasts_longest_counts(
    certificates: Certificates, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    old = CA().issue_cert("old", not_before=now - timedelta(days=60), not_after=now - timedelta(days=1))
    both = tmp_path / "both.pem"
    both.write_bytes(old.cert_chain_pems[0].bytes() + certificates.authority.read_bytes())
    assert "the one of 2 that lasts longest" in await of_broker(
        certificates, certificates.server(HOST), f"ssl_cafile={both}"
    )


async def test_each_certificate_of_a_chain_counts(certificates: Certificates, tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    chain.write_bytes(certificates.server(HOST).read_bytes() + certificates.server("issuer", days=3).read_bytes())
    with pytest.raises(SoonError, match=r"certificate 2 of 2\) runs out in 2 days"):
        await of_web(certificates, chain)


async def test_a_key_of_another_certificate_is_named(certificates: Certificates) -> None:
    certificate, _ = certificates.client("worker")
    _, key = certificates.client("other")
    with pytest.raises(SettingsError, match=f"HOMUNCULUS_WEB_KEY={key}: the key isn't the one of the certificate"):
        await doctor.of_web(app(web_cert=certificate, web_key=key))


async def test_workers_that_would_not_believe_each_other_are_told(certificates: Certificates, tmp_path: Path) -> None:
    stranger = Certificates(tmp_path)
    for days in (30, -1):
        with pytest.raises(FaultError, match="who has this HOMUNCULUS_WEB_CA doesn't believe HOMUNCULUS_WEB_CERT"):
            await of_web(stranger, certificates.server(HOST, days=days))
    assert "days left" in await doctor.of_web(app(web_cert=certificates.server(HOST)))


async def test_where_there_is_no_tls_nothing_is_asked() -> None:
    for broker in ("embedded", "kafka://127.0.0.1:9", "kafka+sasl_plaintext://ann:hush@127.0.0.1:9"):
        assert "not used" in await asyncio.wait_for(doctor.of_brokers(app(broker=broker), None), 1)
    assert "HOMUNCULUS_WEB_CERT makes the web views https" in await doctor.of_web(app())
