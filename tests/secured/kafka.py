"""An Apache Kafka that lets nobody do anything without a right, and the rights of one worker on it."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported, not listed
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.kafka import Broker
from tests.secured.certificates import Certificates
from tests.worker import ROOT, free_port

PASSWORD: Final = "tin-whistle-94"
"""Of the user `worker`. Nothing that we print may hold it."""
_TESTS_PORT, _CONTROLLER_PORT, SASL_SSL, MTLS, TLS, SASL_PLAINTEXT = range(6)
_SCRAM: Final = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


class Right(NamedTuple):
    """What an ACL allows, as kafka-acls.sh says it."""

    operation: str
    kind: str
    """topic, group, transactional-id or cluster."""
    name: str
    prefixed: bool = False


class SecuredKafka:
    """Tests come in by a door of their own, as its super user; everybody else by one of four that ask who they are."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        self.folder = folder
        self.certificates = certificates
        self._port = free_port(6)
        self.broker = Broker("secured Kafka", f"127.0.0.1:{self._port}", transactions=True)
        """Where tests come in."""
        self._admin: AdminClient | None = None

    def address(self, door: int, host: str = "127.0.0.1") -> str:
        """host:port of a door."""
        return f"{host}:{self._port + door}"

    def url(self, door: int = SASL_SSL, **query: object) -> str:
        """HOMUNCULUS_BROKER for a door. The password isn't in it."""
        scheme = {SASL_SSL: "kafka+sasl_ssl", SASL_PLAINTEXT: "kafka+sasl_plaintext"}.get(door, "kafka+ssl")
        asked = dict(query)
        if door != SASL_PLAINTEXT:
            asked.setdefault("ssl_cafile", self.certificates.authority)
        who = "worker@" if "sasl" in scheme else ""
        return f"{scheme}://{who}{self.address(door)}?{'&'.join(f'{k}={v}' for k, v in asked.items())}"

    def start(self, password: str = PASSWORD) -> None:
        """Returns when it answers, and knows the user `worker`."""
        self._script("start", str(self._port), str(self.folder))
        self._admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 2})
        self.set_password(password)

    def set_password(self, password: str) -> None:
        """Of `worker`, where SCRAM asks for it."""
        assert self._admin is not None
        for mechanism in _SCRAM.values():  # a request takes one a user
            wanted = UserScramCredentialUpsertion("worker", ScramCredentialInfo(mechanism, 4096), password.encode())
            for done in self._admin.alter_user_scram_credentials([wanted]).values():
                done.result(30)

    def stop(self) -> None:
        """Returns when it is gone."""
        self._script("stop", str(self.folder))

    def grant(self, rights: Iterable[Right], user: str = "worker") -> None:
        """Returns when the broker has noted them."""
        assert self._admin is not None
        for done in self._admin.create_acls([_binding(right, user) for right in rights]).values():
            done.result(30)

    def revoke(self, right: Right, user: str = "worker") -> None:
        """Takes one back."""
        assert self._admin is not None
        [done] = self._admin.delete_acls([_filter(right, user)]).values()
        assert done.result(30), f"{right} was not there"

    def _script(self, *arguments: str) -> None:
        done = subprocess.run(
            [ROOT / "scripts" / "kafka", *arguments],
            env=os.environ | {"KAFKA_EXTRA": self._properties()},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"scripts/kafka {arguments[0]}: {done.stdout}{done.stderr}"

    def _properties(self) -> str:
        doors = {"TESTS": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", "SASLTLS": "SASL_SSL", "MTLS": "SSL", "TLS": "SSL"}
        doors["SASLCLEAR"] = "SASL_PLAINTEXT"
        listeners = [f"{name}://{self.address(n)}" for n, name in enumerate(doors)]
        server = self.certificates.server("127.0.0.1")
        lines = [
            f"listeners={','.join(listeners)}",
            f"advertised.listeners={','.join(one for one in listeners if 'CONTROLLER' not in one)}",
            f"listener.security.protocol.map={','.join(f'{name}:{kind}' for name, kind in doors.items())}",
            "inter.broker.listener.name=TESTS",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS",
            f"sasl.enabled.mechanisms=PLAIN,{','.join(_SCRAM)}",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={server}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.certificates.authority}",
            "listener.name.mtls.ssl.client.auth=required",
            "ssl.principal.mapping.rules=RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
        ]
        plain = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_worker="{PASSWORD}";'
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        for door, mechanism in itertools.product(("sasltls", "saslclear"), ("plain", *map(str.lower, _SCRAM))):
            module = plain if mechanism == "plain" else scram
            lines.append(f"listener.name.{door}.{mechanism}.sasl.jaas.config={module}")
        return "\n".join(lines)


def _binding(right: Right, user: str) -> AclBinding:
    kind, pattern, who, operation = _acl(right, user)
    return AclBinding(kind, right.name, pattern, who, "*", operation, AclPermissionType.ALLOW)


def _filter(right: Right, user: str) -> AclBindingFilter:
    kind, pattern, who, operation = _acl(right, user)
    return AclBindingFilter(kind, right.name, pattern, who, "*", operation, AclPermissionType.ALLOW)


def _acl(right: Right, user: str) -> tuple[ResourceType, ResourcePatternType, str, AclOperation]:
    kinds = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "cluster": ResourceType.BROKER}
    pattern = ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL
    kind = kinds.get(right.kind, ResourceType.TRANSACTIONAL_ID)
    return kind, pattern, f"User:{user}", AclOperation[right.operation]
