"""Three brokers with two listeners beside the one in the clear: SASL_SSL with a user of every mechanism, and mutual TLS. And ACLs.

In the clear, the test and its independent client may do everything. Programs are USER, by a login or by a certificate, who may do
everything with the topics of cells, and nothing with HIDDEN and DESCRIBED but to describe the latter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.clients import results
from tests.conftest import CALM, running_clusters
from tests.support.certificates import Certificates
from tests.support.invariants import wait_known_everywhere
from tests.support.secured import login_listener, more_listeners
from tests.support.tokens import Issuer
from tests.support.topics import create_topics
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ports import free_ports

BROKERS = 3
LOGINS, CERTIFICATES = "LOGINS", "CERTIFICATES"
"""The listeners: of SASL_SSL, and of SSL with `ssl.client.auth=required`."""
USER, PASSWORD, WRONG_PASSWORD = "alice", "the-secret-of-alice", "a-guess"
HIDDEN, DESCRIBED = "hidden", "described"
"""Topics of one partition."""
SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
OAUTHBEARER = "OAUTHBEARER"
SESSION_S = 2.5
"""A login by a token counts for this long: KIP-368. Clients renew it up to a second earlier, and brokers refuse to renew it within a
second of the last time."""
TIMEOUT_S = 30.0


class Tokens(NamedTuple):
    """Files with a token of USER."""

    valid: Path
    expired: Path
    forged: Path
    """By a key that is not the issuer's, although it has its id."""


class Secured(NamedTuple):
    cluster: LocalCluster
    ports: dict[str, dict[int, int]]
    """Listener -> broker -> port."""
    authority: Path
    """Its certificate: what signed those of the brokers, and that of USER."""
    certificate: Path
    """Of USER, with its key."""
    tokens: Tokens

    def bootstrap(self, listener: str) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports[listener].values())

    def by_password(self, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
        """What a program is asked for, besides its task: to log in as USER."""
        return self._request(LOGINS, mechanism=mechanism, user=USER, password=password)

    def by_token(self, token: Path) -> dict[str, Any]:
        return self._request(LOGINS, mechanism=OAUTHBEARER, token=str(token))

    def by_certificate(self) -> dict[str, Any]:
        return self._request(CERTIFICATES, certificate=str(self.certificate))

    def _request(self, listener: str, **security: str) -> dict[str, Any]:
        return {"bootstrap": self.bootstrap(listener), "security": {"authority": str(self.authority), **security}}


def _settings(made: Certificates, issuer: Issuer) -> dict[str, str]:
    of_logins, of_certificates = (f"listener.name.{name.lower()}" for name in (LOGINS, CERTIFICATES))
    settings = login_listener(LOGINS, made, ("PLAIN", *SCRAM, OAUTHBEARER), {USER: PASSWORD})
    settings["listener.security.protocol.map"] += f",{CERTIFICATES}:SSL"
    return {
        **CALM,
        **settings,
        "broker.api.level": results.API_LEVEL,
        **issuer.settings(f"{of_logins}."),
        f"{of_logins}.oauthbearer.connections.max.reauth.ms": str(round(1000 * SESSION_S)),
        f"{of_certificates}.ssl.client.auth": "required",
        f"{of_certificates}.ssl.truststore.type": "PEM",
        f"{of_certificates}.ssl.truststore.location": str(made.authority),
        f"{of_certificates}.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
        "group.initial.rebalance.delay.ms": "0",
    }


def _add_passwords(admin: AdminClient) -> None:
    """Of SCRAM, one after the other: a request changes one mechanism of a user."""
    for mechanism in SCRAM.values():
        change = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        admin.alter_user_scram_credentials([change])[USER].result(TIMEOUT_S)


def _add_rights(admin: AdminClient) -> None:
    rights = [
        (ResourceType.TOPIC, "topic-", ResourcePatternType.PREFIXED, AclOperation.ALL),
        (ResourceType.TOPIC, DESCRIBED, ResourcePatternType.LITERAL, AclOperation.DESCRIBE),
        (ResourceType.GROUP, "*", ResourcePatternType.LITERAL, AclOperation.ALL),
    ]
    acls = [
        AclBinding(kind, name, pattern, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
        for kind, name, pattern, operation in rights
    ]
    for made in admin.create_acls(acls).values():
        made.result(TIMEOUT_S)


def _new_issuer(directory: Path) -> Issuer:
    directory.mkdir()
    return Issuer(directory)


@contextmanager
def secured_cluster(directory: Path) -> Iterator[Secured]:
    made = Certificates(directory)
    issuer, impostor = (_new_issuer(directory / name) for name in ("issuer", "impostor"))
    tokens = Tokens(
        issuer.token_file("valid", issuer.token(USER)),
        issuer.token_file("expired", issuer.token(USER, -3600)),
        impostor.token_file("forged", impostor.token(USER)),
    )
    free = iter(free_ports(2 * BROKERS))
    ports = {listener: {broker: next(free) for broker in range(1, BROKERS + 1)} for listener in (LOGINS, CERTIFICATES)}
    with running_clusters(directory) as start:
        cluster = start(brokers=BROKERS, overrides=_settings(made, issuer), own_properties=more_listeners(ports))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
        _add_passwords(admin)
        _add_rights(admin)
        create_topics(cluster.bootstrap_servers, NewTopic(HIDDEN, 1, 3), NewTopic(DESCRIBED, 1, 3))
        for topic in (HIDDEN, DESCRIBED):
            wait_known_everywhere(cluster, topic, 1)
        yield Secured(cluster, ports, made.authority, made.of(USER), tokens)
