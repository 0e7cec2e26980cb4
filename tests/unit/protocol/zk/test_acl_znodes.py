"""The znodes of ACLs, beside bytes that a Kafka 3.9.1 has written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.acls import (
    RESOURCE_TYPES,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    PatternFilter,
    PatternType,
    Permission,
    ResourceType,
    name_of,
    word_of,
)
from protocol.zk import acl_znodes

LITERAL, PREFIXED, MATCH, ANY = PatternType.LITERAL, PatternType.PREFIXED, PatternType.MATCH, PatternType.ANY
TOPIC = ResourceType.TOPIC
OF_KAFKA = b'{"acls":[{"principal":"User:alice","permissionType":"Allow","host":"*","operation":"DescribeConfigs"}],"version":1}'
PREFIXED_CHANGE = b'{"version":1,"resourceType":"TRANSACTIONAL_ID","name":"t-","patternType":"PREFIXED"}'


def test_an_acl_is_written_as_by_kafka() -> None:
    acl = Acl("User:alice", "*", Operation.DESCRIBE_CONFIGS, Permission.ALLOW)
    assert acl_znodes.encode([acl]) == OF_KAFKA
    assert acl_znodes.decode(OF_KAFKA) == {acl}
    assert acl_znodes.decode(b"") == frozenset()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
acls = st.builds(
    Acl,
    texts.map("User:{}".format),
    texts,
    st.sampled_from([o for o in Operation if o >= Operation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


@given(st.frozensets(acls, max_size=5))
def test_what_is_written_is_read(written: frozenset[Acl]) -> None:
    assert acl_znodes.decode(acl_znodes.encode(written)) == written


@given(st.sampled_from(RESOURCE_TYPES), texts.filter(acl_znodes.is_name), st.sampled_from([LITERAL, PREFIXED]))
def test_an_announcement_is_read(kind: ResourceType, name: str, pattern_type: PatternType) -> None:
    pattern = Pattern(kind, name, pattern_type)
    assert acl_znodes.decode_change(pattern_type, acl_znodes.encode_change(pattern)) == pattern


def test_announcements_are_written_as_by_kafka() -> None:
    assert acl_znodes.encode_change(Pattern(TOPIC, "orders")) == b"TOPIC:orders"
    tx = Pattern(ResourceType.TRANSACTIONAL_ID, "t-", PREFIXED)
    assert acl_znodes.encode_change(tx) == PREFIXED_CHANGE


def test_paths() -> None:
    assert acl_znodes.path_of(Pattern(TOPIC, "*")) == "/kafka-acl/Topic/*"
    tx = Pattern(ResourceType.TRANSACTIONAL_ID, "t-", PREFIXED)
    assert acl_znodes.path_of(tx) == "/kafka-acl-extended/prefixed/TransactionalId/t-"
    assert acl_znodes.announcement(tx).path == "/kafka-acl-extended-changes/acl_changes_"
    assert "/kafka-acl/DelegationToken" in acl_znodes.PERSISTENT_PATHS


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "not JSON"),
        (b"[]", "a JSON object"),
        (b'{"version":2,"acls":[]}', "version '2'"),
        (b'{"version":1}', "acls must be a list"),
        (b'{"version":1,"acls":[1]}', "an object"),
        (OF_KAFKA.replace(b"DescribeConfigs", b"Fly"), "'Fly' is not an operation"),
        (OF_KAFKA.replace(b"DescribeConfigs", b"Any"), "'Any' is not an operation"),
        (OF_KAFKA.replace(b"Allow", b"Any"), "'Any' is not a permission"),
        (OF_KAFKA.replace(b"User:", b""), "'alice' is not a principal"),
        (OF_KAFKA.replace(b'"*"', b"7"), "host must be a text"),
        (OF_KAFKA.replace(b"alice", rb"\ud800"), "not a text"),
    ],
)
def test_wrong_content_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        acl_znodes.decode(data)


@pytest.mark.parametrize("data", [b"\xff", b"TOPIC", b"TOPIC:", b"FLY:a", b"TOPIC:a/b", b"TOPIC:..", b"ANY:a"])
def test_wrong_announcements_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        acl_znodes.decode_change(LITERAL, data)


def test_names() -> None:
    assert name_of(ResourceType.TRANSACTIONAL_ID) == "TransactionalId"
    assert word_of(Operation, "IDEMPOTENT_WRITE") is word_of(Operation, "IdempotentWrite") is Operation.IDEMPOTENT_WRITE
    assert word_of(Operation, "fly") is None


@pytest.mark.parametrize(
    ("chosen", "pattern", "expected"),
    [
        (PatternFilter(), Pattern(TOPIC, "a"), True),
        (PatternFilter(ResourceType.GROUP), Pattern(TOPIC, "a"), False),
        (PatternFilter(TOPIC, "a", LITERAL), Pattern(TOPIC, "a"), True),
        (PatternFilter(TOPIC, "a", LITERAL), Pattern(TOPIC, "a", PREFIXED), False),
        (PatternFilter(TOPIC, "a", LITERAL), Pattern(TOPIC, "*"), False),
        (PatternFilter(TOPIC, "ab", ANY), Pattern(TOPIC, "a", PREFIXED), False),
        (PatternFilter(TOPIC, "ab", MATCH), Pattern(TOPIC, "a", PREFIXED), True),
        (PatternFilter(TOPIC, "ab", MATCH), Pattern(TOPIC, "*"), True),
        (PatternFilter(TOPIC, "ab", MATCH), Pattern(TOPIC, "*", PREFIXED), False),
        (PatternFilter(TOPIC, None, PREFIXED), Pattern(TOPIC, "a"), False),
    ],
)
def test_filters_of_patterns(chosen: PatternFilter, pattern: Pattern, expected: bool) -> None:
    assert chosen.matches(pattern) is expected


def test_filters_of_acls() -> None:
    acl = Acl("User:alice", "*", Operation.READ, Permission.ALLOW)
    assert AclFilter().matches(acl)
    assert AclFilter("User:alice", "*", Operation.READ, Permission.ALLOW).matches(acl)
    for other in (
        AclFilter("User:bob"),
        AclFilter(host="h"),
        AclFilter(operation=Operation.ALL),
        AclFilter(permission=2),
    ):
        assert not other.matches(acl)
