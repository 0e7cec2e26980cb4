"""ACLs on real brokers with unmodified clients: denied, allowed, and taken away while the client is connected (CLI-5).

Every client and broker here is `User:ANONYMOUS`. What has no ACL is allowed to everybody, so an ACL for somebody else denies it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.conftest import CALM, ClusterFactory
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
SETTINGS = {
    **CALM,
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:admin",
    "allow.everyone.if.no.acl.found": "true",
    "group.initial.rebalance.delay.ms": "0",
}
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
TOPIC, GROUP, TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
DENIED = {
    TOPIC: KafkaError.TOPIC_AUTHORIZATION_FAILED,
    GROUP: KafkaError.GROUP_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
SOON_S = 10.0


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3, overrides=SETTINGS)


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


def create(admin: AdminClient, topic: str) -> str:
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(30)
    return topic


def acl(
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    *,
    principal: str = "User:ANONYMOUS",
    permission: AclPermissionType = AclPermissionType.DENY,
    pattern: ResourcePatternType = LITERAL,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, "*", operation, permission)


def add(admin: AdminClient, *acls: AclBinding) -> None:
    for result in admin.create_acls(list(acls)).values():
        result.result(30)


def remove(admin: AdminClient, *acls: AclBinding) -> int:
    """How many were there."""
    filters = [
        AclBindingFilter(
            a.restype, a.name, a.resource_pattern_type, a.principal, a.host, a.operation, a.permission_type
        )
        for a in acls
    ]
    return sum(len(result.result(30)) for result in admin.delete_acls(filters).values())


@contextmanager
def added(admin: AdminClient, *acls: AclBinding) -> Iterator[None]:
    add(admin, *acls)
    try:
        yield
    finally:
        assert remove(admin, *acls) == len(acls)


def produced(producer: Producer, topic: str) -> int | None:
    """The code of the error that a record gets; None if it is written."""
    codes: list[int | None] = []
    try:
        producer.produce(
            topic, b"v", partition=0, on_delivery=lambda error, _: codes.append(error.code() if error else None)
        )
    except KafkaException as known:  # librdkafka has learned it from Metadata
        code: int = known.args[0].code()
        return code
    assert producer.flush(30) == 0
    return codes[0]


def read(consumer: Consumer) -> int | bytes:
    """The next record, or the code of the next error."""
    message = consumer.poll(30)
    assert message is not None
    return message.error().code() if message.error() is not None else message.value()


def test_a_right_that_is_taken_away_counts_for_the_next_request(cluster: LocalCluster, admin: AdminClient) -> None:
    """Both clients keep their connections, and the consumer its fetch session."""
    topic = create(admin, "taken-away")
    base = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
    producer = Producer({**base, "acks": "all", "message.timeout.ms": 20_000})
    with closing(Consumer({**base, "group.id": "g", "fetch.wait.max.ms": 100})) as consumer:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert produced(producer, topic) is None
        assert read(consumer) == b"v"
        with added(admin, acl(TOPIC, topic, AclOperation.WRITE)):
            eventually(lambda: produced(producer, topic) == DENIED[TOPIC], "the producer is refused", SOON_S)
        eventually(lambda: produced(producer, topic) is None, "the producer writes again", SOON_S)
        eventually(lambda: read(consumer) == b"v", "the consumer reads what was written", SOON_S)
        with added(admin, acl(TOPIC, topic, AclOperation.READ)):
            eventually(lambda: read(consumer) == DENIED[TOPIC], "the consumer is refused", SOON_S)
        eventually(lambda: produced(producer, topic) is None, "the producer writes on", SOON_S)
        eventually(lambda: read(consumer) == b"v", "the consumer reads again", SOON_S)


def test_a_topic_that_others_have_acls_for_is_hidden(cluster: LocalCluster, admin: AdminClient) -> None:
    """An ACL ends `allow.everyone.if.no.acl.found` for what it is about; a prefix counts as well."""
    topic = create(admin, "team-hidden")
    of_bob = acl(
        TOPIC,
        "team-",
        AclOperation.READ,
        principal="User:bob",
        permission=AclPermissionType.ALLOW,
        pattern=PREFIXED,
    )
    with added(admin, of_bob):
        eventually(lambda: topic not in admin.list_topics(timeout=10).topics, "it is not listed", SOON_S)
        named = admin.list_topics(topic, timeout=10).topics[topic]
        assert named.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        missing = admin.list_topics("team-missing", timeout=10).topics["team-missing"]
        assert missing.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, "nobody learns that it does not exist"
        found = admin.describe_acls(
            AclBindingFilter(
                TOPIC, topic, ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
            )
        ).result(30)
        assert found == [of_bob]
        with pytest.raises(KafkaException) as refused:
            admin.delete_topics([topic])[topic].result(30)
        assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    eventually(lambda: topic in admin.list_topics(timeout=10).topics, "it is listed again", SOON_S)


def test_a_group_needs_read(cluster: LocalCluster, admin: AdminClient) -> None:
    topic = create(admin, "of-a-group")
    with added(admin, acl(GROUP, "denied-", AclOperation.READ, pattern=PREFIXED)):
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "denied-1", "log_level": 0}
        with closing(Consumer(settings)) as consumer:
            consumer.subscribe([topic])
            eventually(lambda: read(consumer) == DENIED[GROUP], "the consumer may not join", SOON_S)


def test_a_transactional_id_needs_write(cluster: LocalCluster, admin: AdminClient) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "denied", "log_level": 0}
    topic = create(admin, "of-a-transaction")
    with added(admin, acl(TRANSACTIONAL_ID, "denied", AclOperation.ALL)):
        with pytest.raises(KafkaException) as refused:
            Producer(settings).init_transactions(30)
        assert refused.value.args[0].code() == DENIED[TRANSACTIONAL_ID]
    producers: list[Producer] = []
    # A new one each time: that a broker does not know of the removal yet is a fatal error for a producer.
    eventually(lambda: _initialized(producers, settings), "the producer may begin", SOON_S)
    producer = producers[-1]
    producer.begin_transaction()
    producer.produce(topic, b"v")
    producer.commit_transaction(30)


def _initialized(producers: list[Producer], settings: dict[str, str | int]) -> bool:
    producers.append(Producer(settings))
    try:
        producers[-1].init_transactions(10)
    except KafkaException:
        return False
    return True


def test_admins_need_the_cluster_or_the_topic(cluster: LocalCluster, admin: AdminClient) -> None:
    """Create: on the cluster, or on the topic. ACLs: Alter on the cluster, which is not denied here, or nobody could go on."""
    kind, name = ResourceType.BROKER, "kafka-cluster"
    may_create = acl(TOPIC, "mine-", AclOperation.CREATE, permission=AclPermissionType.ALLOW, pattern=PREFIXED)
    others = [
        acl(kind, name, operation, permission=AclPermissionType.ALLOW)
        for operation in (AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION)
    ]
    with added(admin, *others, may_create, acl(TOPIC, "yours", AclOperation.CREATE)):
        eventually(lambda: _create_error(admin, "yours") == DENIED[TOPIC], "it may not be created", SOON_S)
        eventually(lambda: _create_error(admin, "mine-1") is None, "it may be created", SOON_S)
        operations = admin.describe_cluster(include_authorized_operations=True).result(30).authorized_operations
        assert set(operations) == {AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION}


def _create_error(admin: AdminClient, topic: str) -> int | None:
    try:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    except KafkaException as refused:
        code: int = refused.args[0].code()
        return None if code == KafkaError.TOPIC_ALREADY_EXISTS else code
    return None


def test_replication_and_authorized_operations(cluster: LocalCluster, zk: ZooKeeperView, admin: AdminClient) -> None:
    """Followers fetch by ClusterAction, and answers name what the client may do."""
    topic = create(admin, "replicated")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    allowed = acl(TOPIC, topic, AclOperation.WRITE, permission=AclPermissionType.ALLOW)
    with added(admin, allowed):
        assert produced(producer, topic) is None
        assert len(zk.state(topic, 0).isr) == 3
        with Wire(cluster.port(cluster.broker_ids[0])) as wire:
            body = {
                "topics": [{"name": topic}],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": True,
                "include_topic_authorized_operations": True,
            }
            answer = wire.call(ApiKey.METADATA, 8, body)
        expected = 1 << AclOperation.WRITE.value | 1 << AclOperation.DESCRIBE.value
        assert answer.topics[0].topic_authorized_operations == expected
        assert answer.topics[0].error_code == ErrorCode.NONE
