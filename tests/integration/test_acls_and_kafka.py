"""Kafka's own `kafka-acls` and ours read each other's ACLs: in ZooKeeper, and from our brokers."""

from __future__ import annotations

import pytest

from protocol.acls import Acl, Operation, Pattern, PatternType, Permission, ResourceType
from protocol.zk import acl_znodes
from tests.conftest import CALM, ClusterFactory
from tests.integration.conftest import cli_of
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.kafka_tools import KafkaTools
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

ACLS = "kafka.admin.AclCommand"
AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
SOON_S = 10.0
LITERAL = Pattern(ResourceType.TOPIC, "orders")
PREFIXED = Pattern(ResourceType.TRANSACTIONAL_ID, "t-", PatternType.PREFIXED)
ALICE = Acl("User:alice", "*", Operation.READ, Permission.ALLOW)
BOB = Acl("User:bob", "10.0.0.1", Operation.ALL, Permission.DENY)


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    settings = {**CALM, "authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    return new_module_cluster(brokers=1, overrides=settings)


def _last(zk: ZooKeeperView, kind: PatternType) -> bytes:
    """The last announcement."""
    parent = acl_znodes.CHANGES[kind]
    data: bytes = zk.client.get(f"{parent}/{max(zk.client.get_children(parent))}")[0]
    return data


def _acls_in(output: str) -> list[str]:
    """Without the warning that the way over ZooKeeper is deprecated."""
    return sorted(line.strip() for line in output.split("\n") if line and not line.startswith("Warning"))


def test_each_reads_what_the_other_writes(cluster: LocalCluster, zk: ZooKeeperView, kafka_tools: KafkaTools) -> None:
    cli = cli_of(cluster)
    direct = ("--authorizer-properties", f"zookeeper.connect={cluster.zookeeper_connect}")
    add = ("--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders")
    kafka_tools.run(ACLS, *direct, *add)
    assert zk.client.get(acl_znodes.path_of(LITERAL))[0] == acl_znodes.encode([ALICE])
    assert _last(zk, PatternType.LITERAL) == acl_znodes.encode_change(LITERAL)
    prefixed = ("--transactional-id", "t-", "--resource-pattern-type", "prefixed")
    kafka_tools.run(ACLS, *direct, "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", *prefixed)
    assert zk.client.get(acl_znodes.path_of(PREFIXED))[0] == acl_znodes.encode([BOB])
    assert _last(zk, PatternType.PREFIXED) == acl_znodes.encode_change(PREFIXED)

    listed = "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)"
    denied = "(principal=User:bob, host=10.0.0.1, operation=ALL, permissionType=DENY)"

    def knows_both() -> bool:
        known = cli.output("acl", "list")
        return listed in known and denied in known

    eventually(knows_both, "our broker knows both", SOON_S)

    cli.output("acl", "add", "--allow-principal", "User:carol", "--consumer", "--topic", "orders", "--group", "g")
    ours = kafka_tools.run(ACLS, *direct, "--list")
    for words in (
        "(principal=User:carol, host=*, operation=DESCRIBE, permissionType=ALLOW)",
        "ResourcePattern(resourceType=GROUP, name=g, patternType=LITERAL)",
        listed,
        denied,
    ):
        assert words in ours
    over_the_wire = kafka_tools.run(ACLS, "--bootstrap-server", cluster.bootstrap_servers, "--list")
    assert _acls_in(over_the_wire) == _acls_in(ours)
    cli.output("acl", "remove", "--topic", "orders", "--force")
    assert "orders" not in kafka_tools.run(ACLS, *direct, "--list")
    assert not zk.client.exists(acl_znodes.path_of(LITERAL))
    kafka_tools.run(ACLS, "--bootstrap-server", cluster.bootstrap_servers, "--remove", *prefixed, "--force")
    eventually(lambda: denied not in cli.output("acl", "list"), "it is gone", SOON_S)
