"""Three brokers with a listener of SASL_SSL beside the one in the clear, users of every mechanism, and ACLs.

In the clear, the test and its independent client may do everything. Programs log in as USER, who may do everything with the topics
of cells, and nothing with HIDDEN and DESCRIBED but to describe the latter.
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

from tests.conftest import CALM, running_clusters
from tests.support.certificates import Certificates
from tests.support.invariants import wait_known_everywhere
from tests.support.secured import login_listener, more_listeners
from tests.support.topics import create_topics
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ports import free_ports

BROKERS = 3
LISTENER = "CLIENTS"
USER, PASSWORD, WRONG_PASSWORD = "alice", "the-secret-of-alice", "a-guess"
HIDDEN, DESCRIBED = "hidden", "described"
"""Topics of one partition."""
SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
TIMEOUT_S = 30.0


class Secured(NamedTuple):
    cluster: LocalCluster
    bootstrap: str
    """Of the listener with SASL_SSL."""
    authority: Path
    """Its certificate: what signed those of the brokers."""

    def login(self, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
        """What a program is asked for, besides its task."""
        security = {"authority": str(self.authority), "mechanism": mechanism, "user": USER, "password": password}
        return {"bootstrap": self.bootstrap, "security": security}


@contextmanager
def secured_cluster(directory: Path) -> Iterator[Secured]:
    made = Certificates(directory)
    ports = dict(enumerate(free_ports(BROKERS), 1))
    overrides = {
        **CALM,
        **login_listener(LISTENER, made, ("PLAIN", *SCRAM), {USER: PASSWORD}),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
        "group.initial.rebalance.delay.ms": "0",
    }
    with running_clusters(directory) as start:
        listener = more_listeners({LISTENER: ports})
        cluster = start(brokers=BROKERS, overrides=overrides, own_properties=listener)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
        change = [
            UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for mechanism in SCRAM.values()
        ]
        for one in change:
            admin.alter_user_scram_credentials([one])[USER].result(TIMEOUT_S)
        rights = [
            (ResourceType.TOPIC, "topic-", ResourcePatternType.PREFIXED, AclOperation.ALL),
            (ResourceType.TOPIC, DESCRIBED, ResourcePatternType.LITERAL, AclOperation.DESCRIBE),
            (ResourceType.GROUP, "*", ResourcePatternType.LITERAL, AclOperation.ALL),
        ]
        acls = [
            AclBinding(kind, name, pattern, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
            for kind, name, pattern, operation in rights
        ]
        for made_acl in admin.create_acls(acls).values():
            made_acl.result(TIMEOUT_S)
        create_topics(cluster.bootstrap_servers, NewTopic(HIDDEN, 1, 3), NewTopic(DESCRIBED, 1, 3))
        for topic in (HIDDEN, DESCRIBED):
            wait_known_everywhere(cluster, topic, 1)
        yield Secured(cluster, ",".join(f"127.0.0.1:{port}" for port in ports.values()), made.authority)
