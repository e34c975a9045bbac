"""What a doctor finds in certificates: in the files that we show and believe by, and in what each broker shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cli.checks import FaultError, SoonError
from cli.reach import address
from core.errors import NotAdmittedError
from engine import security, tls
from engine.admin import TopicAdmin
from engine.admission import shown, unanswered
from engine.app import App
from engine.certificates import Certificate, decoded, in_file
from engine.connection import Connection, client_options

SOON: Final = timedelta(days=21)
"""What ends within it is to be renewed now."""
_RENEW: Final = "renew it, and restart the worker, which reads it when it starts"


class Findings:
    """What is as it must be, what must be done soon, and what is wrong."""

    def __init__(self) -> None:
        self._now = datetime.now(UTC)
        self._well: list[str] = []
        self._soon: list[str] = []
        self._wrong: list[str] = []

    def judge(self, what: str, found: Certificate, do: str) -> None:
        """Notes how long a certificate still counts. do: what helps where it doesn't."""
        left, day = found.ends - self._now, f"{found.ends:%Y-%m-%d}"
        if left <= timedelta(0):
            self._wrong.append(f"{what} has run out on {day}: {do}")
        elif self._now < found.begins:
            self._wrong.append(
                f"{what} is not valid before {found.begins:%Y-%m-%d %H:%M} UTC: wait, or set this machine's clock, "
                f"which says {self._now:%Y-%m-%d %H:%M}"
            )
        elif left < SOON:
            self._soon.append(f"{what} runs out in {left.days} days, on {day}: {do}")
        else:
            self._well.append(f"{what} has {left.days:,} days left")

    def judge_chain(self, what: str, path: Path) -> None:
        """Every certificate of a file that is shown to others: each one of them is asked for."""
        found = in_file(path)
        for place, one in enumerate(found, start=1):
            which = f" (certificate {place} of {len(found)})" if len(found) > 1 else ""
            self.judge(f"{what}={path}{which}", one, _RENEW)

    def judge_authorities(self, what: str, path: Path) -> None:
        """A file of authorities that are believed: the one that lasts longest counts, as old ones stay beside new."""
        found = in_file(path)
        which = f" (the one of {len(found)} that lasts longest)" if len(found) > 1 else ""
        self.judge(f"{what}={path}{which}", max(found, key=lambda one: one.ends), _RENEW)

    def fail(self, why: str) -> None:
        """Notes something else that is wrong."""
        self._wrong.append(why)

    def report(self) -> str:
        """All of it where all is well. Raises FaultError, or SoonError, with what isn't."""
        if self._wrong:
            raise FaultError("; ".join(self._wrong + self._soon))
        if self._soon:
            raise SoonError("; ".join(self._soon))
        return "; ".join(self._well)


async def of_brokers(app: App, connection: Connection | None) -> str:
    """Whether we and the brokers can go on believing each other. connection: None where none lets us in."""
    settings = app.settings
    bootstrap, options = client_options(address(settings), settings)
    if "ssl_context" not in options:
        return "not used with this HOMUNCULUS_BROKER"
    findings, files = Findings(), security.files(settings.broker)
    if (cafile := files.get("ssl_cafile")) is not None:
        findings.judge_authorities("ssl_cafile", cafile)
    if (certfile := files.get("ssl_certfile")) is not None:
        findings.judge_chain("ssl_certfile", certfile)
    for server in dict.fromkeys([*bootstrap.split(","), *await _advertised(connection)]):
        try:
            found = decoded(await shown(server, options))
        except NotAdmittedError as error:
            findings.fail(str(error))
        except (OSError, TimeoutError) as error:
            findings.fail(f"the broker at {server} shows no certificate ({unanswered(error, options)})")
        else:
            findings.judge(f"the certificate of the broker at {server}", found, "renew it there")
    return findings.report()


async def _advertised(connection: Connection | None) -> list[str]:
    """The addresses that the brokers give to their clients."""
    if connection is None:
        return []
    async with TopicAdmin(connection.bootstrap, connection.security) as admin:
        brokers = (await admin.client.describe_cluster())["brokers"]
    return [f"{broker['host']}:{broker['port']}" for broker in brokers]


async def of_web(app: App) -> str:
    """Whether clients and other workers can go on believing this one. Raises SettingsError for a file that can't be
    used."""
    settings, findings = app.settings, Findings()
    doubt = tls.doubt(settings)
    if settings.web_cert is None and settings.web_ca is None:
        return "not used: HOMUNCULUS_WEB_CERT makes the web views https"
    if settings.web_cert is not None:
        findings.judge_chain("HOMUNCULUS_WEB_CERT", settings.web_cert)
    if settings.web_ca is not None:
        findings.judge_authorities("HOMUNCULUS_WEB_CA", settings.web_ca)
    if doubt is not None:
        findings.fail(
            f"who has this HOMUNCULUS_WEB_CA doesn't believe HOMUNCULUS_WEB_CERT ({doubt}), and workers pass requests "
            "on to each other: name the file of the authority that has signed it"
        )
    return findings.report()
