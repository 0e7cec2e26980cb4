"""The group APIs on the wire, against ottla and against a real Kafka: the same requests, the same answers (CLI-2).

BAD-25, BAD-32, BAD-33, INV-24. The error codes that are expected were first seen at Kafka 3.9.1 in ZooKeeper mode; with a
real Kafka at hand the whole answers are compared, but for addresses and random ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from protocol.kafka.api_keys import SUPPORTED, ApiKey
from tests.conftest import CALM, SHARED_KAFKA_SETTINGS, ClusterFactory
from tests.support.cli import Cli
from tests.support.group_wire import GroupWire, Row, errors_of

pytestmark = pytest.mark.integration

FIND, JOIN, SYNC, BEAT, LEAVE = (
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
)
COMMIT, FETCH, FORGET = ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE
LIST, DESCRIBE, DELETE = ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_GROUPS, ApiKey.DELETE_GROUPS

BROKERS = 3
SETTINGS = SHARED_KAFKA_SETTINGS | {"group.initial.rebalance.delay.ms": "0"}
TOPIC_SOURCE = 1
"""DescribeConfigs: the topic's own setting."""
LONG = "x" * 10_000
Make = Callable[[GroupWire], Row]


@pytest.fixture(scope="module")
def ottla(new_module_cluster: ClusterFactory) -> str:
    """The address of a cluster of our own."""
    return new_module_cluster(brokers=BROKERS, overrides=SETTINGS | CALM).bootstrap_servers


@pytest.fixture
def kafka(shared_kafka: Cli) -> str:
    return shared_kafka.bootstrap_servers


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest) -> Iterator[GroupWire]:
    """Groups of this test's own, in either cluster."""
    with GroupWire(request.getfixturevalue(request.param), BROKERS) as wire:
        yield wire


class Case(NamedTuple):
    """A request to the coordinator of `group`, and the error codes of the answer from the outside in."""

    api_key: ApiKey
    version: int
    group: str
    """A name that starts with `!` is sent to another broker."""
    make: Make
    errors: list[int]


def cases(api_key: ApiKey, versions: Sequence[int], group: str, make: Make, *errors: int) -> list[Case]:
    return [Case(api_key, version, group, make, list(errors)) for version in versions]


def served(api_key: ApiKey, first: int = 0) -> range:
    return range(max(first, SUPPORTED[api_key].min), SUPPORTED[api_key].max + 1)


def run_case(c: GroupWire, case: Case) -> Any:
    if case.api_key == LIST:
        return c.list_groups(case.version, case.make(c))
    ask = c.elsewhere if case.group.startswith("!") else c.at
    name = case.group.removeprefix("!")
    return c.plain(ask(c.name(name), case.api_key, case.version, case.make(c)))


# -- members --------------------------------------------------------------------------------------------------------------


def of_member(name: str = "new", member: str = "", **changes: Any) -> Make:
    """A JoinGroup, SyncGroup or Heartbeat. MINE is the member of the group `live`, STATIC the one of `static`."""
    return lambda c: c.as_member(c.name(name), whose(c, member), **changes)


join = sync = beat = of_member


def whose(c: GroupWire, member: str) -> str:
    return {"MINE": c.member, "STATIC": c.static_member}.get(member, member)


def leave(name: str, *members: tuple[str, str | None]) -> Make:
    """v0 to v2 have only the first member."""

    def body(c: GroupWire) -> Row:
        rows = [{"member_id": whose(c, m), "group_instance_id": i, "reason": "why"} for m, i in members]
        first = rows[0]["member_id"] if rows else ""
        return {"group_id": c.name(name), "member_id": first, "members": rows}

    return body


OTHER_PROTOCOL = [{"name": "sticky", "metadata": b""}]

FINDING = [
    *cases(FIND, served(FIND), "live", lambda c: {"key": c.live, "coordinator_keys": [c.live], "key_type": 0}, 0),
    *cases(FIND, (1, 3, 4), "live", lambda c: {"key": "k", "coordinator_keys": ["k"], "key_type": 9}, 42),
    *cases(FIND, (3, 5), "live", lambda c: {"key": "k", "coordinator_keys": ["k"], "key_type": 2}, 42),
    *cases(FIND, (6,), "live", lambda c: {"key": "k", "coordinator_keys": ["k"], "key_type": 2}, 15),
    *cases(FIND, (4,), "live", lambda c: {"coordinator_keys": [c.live, "", c.live, LONG], "key_type": 0}, 0, 0, 0, 0),
    *cases(FIND, (4,), "live", lambda c: {"coordinator_keys": [], "key_type": 0}),
]
JOINING = [
    *cases(JOIN, served(JOIN), "new", join(session_timeout=5_999), 26),
    *cases(JOIN, (9,), "new", join(session_timeout=1_800_001), 26),
    *cases(JOIN, (9,), "new", join(session_timeout=-1), 26),
    *cases(JOIN, served(JOIN), "", join(""), 24),
    *cases(JOIN, (0, 9), "new", join(protocols=[]), 23),
    *cases(JOIN, (0, 9), "new", join(protocol_type=""), 23),
    *cases(JOIN, (0, 9), "live", join("live", "MINE", protocol_type="connect"), 23),
    *cases(JOIN, (0, 9), "live", join("live", "MINE", protocols=OTHER_PROTOCOL), 23),
    *cases(JOIN, served(JOIN), "new", join("new", "nobody"), 25),
    *cases(JOIN, (3, 9), "live", join("live", "nobody"), 25),
    *cases(JOIN, (0, 3, 4, 9), "full", join("full"), 81),
    *cases(JOIN, (5, 9), "full", join("full", group_instance_id="j"), 81),
    *cases(JOIN, (3, 9), "full", join("full", "nobody"), 81),
    *cases(JOIN, (5, 9), "static", join("static", "nobody", group_instance_id="i"), 82),
    *cases(JOIN, (5, 9), "static", join("static", "nobody", group_instance_id="j"), 25),
    *cases(JOIN, (4, 6, 7, 9), "second", join("second"), 79),
    *cases(JOIN, (4,), LONG, join(LONG), 79),
    *cases(JOIN, (0, 4, 9), "!live", join("live", "MINE"), 16),
]
SYNCING = [
    *cases(SYNC, served(SYNC), "live", sync("live", "MINE"), 0),
    *cases(SYNC, served(SYNC), "none", sync("none", "m"), 25),
    *cases(SYNC, (0, 5), "live", sync("live", "m"), 25),
    *cases(SYNC, (0, 5), "live", sync("live", "MINE", generation_id=0), 22),
    *cases(SYNC, (0, 5), "live", sync("live", "MINE", generation_id=2), 22),
    *cases(SYNC, (0, 5), "", sync("", "m"), 24),
    *cases(SYNC, (5,), "live", sync("live", "MINE", protocol_name=None), 23),
    *cases(SYNC, (5,), "live", sync("live", "MINE", protocol_type=None), 23),
    *cases(SYNC, (5,), "live", sync("live", "MINE", protocol_name="sticky"), 23),
    *cases(SYNC, (5,), "live", sync("live", "MINE", protocol_type="connect"), 23),
    *cases(SYNC, (3, 5), "static", sync("static", "m", group_instance_id="i"), 82),
    *cases(SYNC, (3, 5), "static", sync("static", "STATIC", group_instance_id="i"), 0),
    *cases(SYNC, (3, 5), "static", sync("static", "STATIC", group_instance_id="j"), 25),
    *cases(SYNC, (0, 5), "!live", sync("live", "MINE"), 16),
]
BEATING = [
    *cases(BEAT, served(BEAT), "live", beat("live", "MINE"), 0),
    *cases(BEAT, served(BEAT), "none", beat("none", "m"), 25),
    *cases(BEAT, (0, 4), "live", beat("live", "m"), 25),
    *cases(BEAT, (0, 4), "live", beat("live", ""), 25),
    *cases(BEAT, (0, 4), "idle", beat("idle", "m"), 25),
    *cases(BEAT, (0, 4), "live", beat("live", "MINE", generation_id=0), 22),
    *cases(BEAT, (0, 4), "live", beat("live", "MINE", generation_id=2), 22),
    *cases(BEAT, (0, 4), "live", beat("live", "MINE", generation_id=-1), 22),
    *cases(BEAT, (0, 4), "", beat("", "m"), 24),
    *cases(BEAT, (3, 4), "static", beat("static", "m", group_instance_id="i"), 82),
    *cases(BEAT, (3, 4), "static", beat("static", "STATIC", group_instance_id="j"), 25),
    *cases(BEAT, (0, 4), "!live", beat("live", "MINE"), 16),
]
LEAVING = [
    *cases(LEAVE, (0, 1, 2), "none", leave("none", ("m", None)), 25),
    *cases(LEAVE, (3, 4, 5), "none", leave("none", ("m", None), ("n", None)), 0, 25, 25),
    *cases(LEAVE, (0, 2), "live", leave("live", ("m", None)), 25),
    *cases(LEAVE, (3, 5), "live", leave("live", ("m", None), ("m", None), ("", None)), 0, 25, 25, 25),
    *cases(LEAVE, (0, 2, 3, 5), "", leave("", ("m", None)), 24),
    *cases(LEAVE, (3, 5), "live", leave("live"), 0),
    *cases(LEAVE, (3, 5), "static", leave("static", ("m", "i"), ("STATIC", "j"), ("", "j")), 0, 25, 25, 82),
    *cases(LEAVE, (0, 2, 3, 5), "!live", leave("live", ("MINE", None)), 16),
]


# -- offsets --------------------------------------------------------------------------------------------------------------


def commit(
    name: str, member: str = "", generation: int = -1, offsets: dict[int, int] | None = None, **changes: Any
) -> Make:
    def body(c: GroupWire) -> Row:
        place = {"member_id": whose(c, member), "generation_id_or_member_epoch": generation}
        return c.committing(c.name(name), {0: 5} if offsets is None else offsets, **place, **changes)

    return body


def commit_twice(name: str) -> Make:
    """The same topic twice, the same partition with two offsets; and a topic that is not there."""

    def body(c: GroupWire) -> Row:
        group = c.prefix + name
        topics = [c.committing(group, {0: n})["topics"][0] for n in (1, 2)]
        return c.committing(group, {}) | {"topics": [*topics, c.committing(group, {0: 1}, "nope")["topics"][0]]}

    return body


def fetch(*names: str, topics: dict[str, list[int]] | None = None, of_all: bool = False) -> Make:
    """`topics`: `read`, `other` or one that is not there, and its partitions. Up to v7 only of the first group."""

    def body(c: GroupWire) -> Row:
        wanted: list[Row] | None = None
        if not of_all:
            asked = {"read": [0, 1]} if topics is None else topics
            real = {"read": c.read, "other": c.other}
            wanted = [{"name": real.get(t, t), "partition_indexes": p} for t, p in asked.items()]
        groups = [c.name(name) for name in names]
        return {
            "group_id": groups[0] if groups else "",
            "topics": wanted,
            "groups": [{"group_id": group, "topics": wanted} for group in groups],
            "require_stable": True,
        }

    return body


def forget(name: str, topics: dict[str, list[int]]) -> Make:
    def body(c: GroupWire) -> Row:
        real = {"read": c.read, "other": c.other}
        rows = [
            {"name": real.get(t, t), "partitions": [{"partition_index": p} for p in ps]} for t, ps in topics.items()
        ]
        return {"group_id": c.name(name), "topics": rows}

    return body


COMMITTING = [
    *cases(COMMIT, served(COMMIT), "simple", commit("simple"), 0),
    *cases(COMMIT, served(COMMIT), "live", commit("live", "MINE", 1), 0),
    *cases(COMMIT, (7, 9), "static", commit("static", "STATIC", 1, group_instance_id="i"), 0),
    *cases(COMMIT, served(COMMIT), "simple", commit("simple", offsets={0: 6, 9: 1}), 0, 3),
    *cases(COMMIT, (2, 9), "simple", commit("simple", topic="nope"), 3),
    *cases(COMMIT, (2, 9), "simple", commit("simple", topic="a/b"), 3),
    *cases(COMMIT, (2, 9), "simple", commit("simple", offsets={-1: 5}), 3),
    *cases(COMMIT, (2, 9), "simple", commit("simple", topics=[])),
    *cases(COMMIT, served(COMMIT), "simple", commit("simple", metadata="m" * 4096), 0),
    *cases(COMMIT, served(COMMIT), "simple", commit("simple", metadata="m" * 4097), 12),
    *cases(COMMIT, (8,), "simple", commit("simple", metadata=None), 0),
    *cases(COMMIT, (8,), "simple", commit("simple", offsets={0: -5}), 0),
    *cases(COMMIT, (8,), "twice", commit_twice("twice"), 3, 0),
    *cases(COMMIT, (2, 9), "none", commit("none", "m", 1), 22),
    *cases(COMMIT, (2, 9), "idle", commit("idle", "m", 1), 25),
    *cases(COMMIT, (2, 9), "live", commit("live"), 25),
    *cases(COMMIT, (2, 9), "live", commit("live", "m", 1), 25),
    *cases(COMMIT, (2, 9), "live", commit("live", "MINE", 0), 22),
    *cases(COMMIT, (2, 9), "live", commit("live", "MINE", -1), 22),
    *cases(COMMIT, (7, 9), "static", commit("static", "m", 1, group_instance_id="i"), 82),
    *cases(COMMIT, (7, 9), "static", commit("static", "STATIC", 1, group_instance_id="j"), 25),
    *cases(COMMIT, (2, 8), "", commit(""), 0),
    *cases(COMMIT, (2, 8), LONG, commit(LONG), 0),
    *cases(COMMIT, (2, 9), "!live", commit("live", "MINE", 1), 16),
    *cases(COMMIT, (3,), "simple", commit("simple", retention_time=60_000), 0),
]
FETCHING = [
    *cases(FETCH, (1,), "idle", fetch("idle"), 0, 0),
    *cases(FETCH, range(2, 8), "idle", fetch("idle"), 0, 0, 0),
    *cases(FETCH, (8, 9), "idle", fetch("idle"), 0, 0, 0),
    *cases(FETCH, range(2, 10), "idle", fetch("idle", of_all=True), 0, 0, 0, 0),
    *cases(FETCH, (7, 8), "none", fetch("none"), 0, 0, 0),
    *cases(FETCH, (7, 8), "none", fetch("none", of_all=True), 0),
    *cases(FETCH, (7, 8), "idle", fetch("idle", topics={}), 0),
    *cases(FETCH, (7, 8), "idle", fetch("idle", topics={"other": [0, 1, 99, -1], "nope": [0]}), *[0] * 6),
    *cases(FETCH, (7, 8), "idle", fetch("idle", topics={"read": [0, 0]}), 0, 0),
    *cases(FETCH, (8,), "", fetch("", topics={"nope": [0]}), 0, 0),
    *cases(FETCH, (2, 7, 8, 9), "!idle", fetch("idle"), 16),
    *cases(FETCH, (8,), "idle", fetch("idle", "idle"), *[0] * 6),
    *cases(FETCH, (8,), "twice", fetch("twice"), 0, 0, 0),
    *cases(FETCH, (8,), "simple", fetch("simple", of_all=True), 0, 0),
]
FORGETTING = [
    *cases(FORGET, (0,), "none", forget("none", {"read": [0]}), 69),
    *cases(FORGET, (0,), "", forget("", {"nope": [0]}), 24),
    *cases(FORGET, (0,), "!idle", forget("idle", {"read": [0]}), 16),
    *cases(FORGET, (0,), "live", forget("live", {"read": [0], "other": [0], "nope": [0]}), 0, 3, 0, 86),
    *cases(FORGET, (0,), "idle", forget("idle", {}), 0),
    *cases(FORGET, (0,), "idle", forget("idle", {"read": [1, 1, 9], "other": [1]}), 0, 0, 0, 3),
    *cases(FETCH, (8,), "idle", fetch("idle", of_all=True), 0, 0, 0),
]


# -- groups ---------------------------------------------------------------------------------------------------------------


def listing(states: Sequence[str] = (), types: Sequence[str] = ()) -> Make:
    return lambda c: {"states_filter": states, "types_filter": types}


def describe(*names: str, operations: bool = False) -> Make:
    return lambda c: {
        "groups": [c.name(name) for name in names],
        "include_authorized_operations": operations,
    }


def delete(*names: str) -> Make:
    return lambda c: {"groups_names": [c.name(name) for name in names]}


ADMIN = [
    *cases(LIST, served(LIST), "live", listing(), 0),
    *cases(LIST, (4, 5), "live", listing(["Stable"]), 0),
    *cases(LIST, (4, 5), "live", listing(["stable", "EMPTY"]), 0),
    *cases(LIST, (4, 5), "live", listing(["nonsense"]), 0),
    *cases(LIST, (5,), "live", listing(types=["classic"]), 0),
    *cases(LIST, (5,), "live", listing(types=["Classic", "consumer"]), 0),
    *cases(LIST, (5,), "live", listing(types=["consumer"]), 0),
    *cases(LIST, (5,), "live", listing(types=["nonsense"]), 0),
    *cases(LIST, (5,), "live", listing(["empty"], ["classic"]), 0),
    *cases(DESCRIBE, served(DESCRIBE), "live", describe("live"), 0),
    *cases(DESCRIBE, (3, 5), "live", describe("live", operations=True), 0),
    *cases(DESCRIBE, (3, 5), "none", describe("none", operations=True), 0),
    *cases(DESCRIBE, served(DESCRIBE, 3), "static", describe("static"), 0),
    *cases(DESCRIBE, (0, 5), "none", describe("none"), 0),
    *cases(DESCRIBE, (0, 5), "idle", describe("idle"), 0),
    *cases(DESCRIBE, (0, 5), "", describe(""), 0),
    *cases(DESCRIBE, (5,), "idle", describe("idle", "idle"), 0, 0),
    *cases(DESCRIBE, (5,), "idle", describe()),
    *cases(DESCRIBE, (0, 5), "!live", describe("live", operations=True), 16),
    *cases(DELETE, served(DELETE), "live", delete("live"), 68),
    *cases(DELETE, served(DELETE), "none", delete("none"), 69),
    *cases(DELETE, (2,), "", delete()),
    *cases(DELETE, (0, 2), "!idle", delete("idle"), 16),
    *cases(COMMIT, (8,), "gone", commit("gone"), 0),
    *cases(DELETE, (2,), "gone", delete("gone", "gone"), 0),
    *cases(FETCH, (8,), "gone", fetch("gone", of_all=True), 0),
    *cases(DELETE, (2,), "gone", delete("gone"), 69),
    *cases(COMMIT, (8,), "forgotten", commit("forgotten"), 0),
    *cases(FORGET, (0,), "forgotten", forget("forgotten", {"read": [0]}), 0, 0),
    *cases(DELETE, (2,), "forgotten", delete("forgotten"), 69),
    *cases(LEAVE, (5,), "live", leave("live", ("MINE", None)), 0, 0),
    *cases(DESCRIBE, (5,), "live", describe("live"), 0),
    *cases(COMMIT, (8,), "live", commit("live"), 0),
    *cases(LEAVE, (3,), "static", leave("static", ("", "i"), ("", "i")), 0, 0, 25),
    *cases(DESCRIBE, (5,), "static", describe("static"), 0),
    *cases(DELETE, (2,), "static", delete("static"), 0),
    *cases(DESCRIBE, (5,), "static", describe("static"), 0),
]
"""In this order: at its end the groups are taken apart."""


OFFSETS = [*COMMITTING, *FETCHING, *FORGETTING]
TABLES = {
    "finding": FINDING,
    "joining (BAD-32)": JOINING,
    "syncing (INV-24)": SYNCING,
    "beating (INV-24, BAD-33)": BEATING,
    "leaving": LEAVING,
    "offsets (BAD-33, KIP-496)": OFFSETS,
    "groups": ADMIN,
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_errors(cluster: GroupWire, table: Sequence[Case]) -> None:
    """A table is one test, since each case takes some milliseconds."""
    for number, case in enumerate(table):
        answer = run_case(cluster, case)
        assert list(errors_of(answer)) == case.errors, (number, case, answer)


def test_the_topic_of_the_groups(cluster: GroupWire) -> None:
    """The first FindCoordinator creates the topic, which is internal."""
    name = "__consumer_offsets"
    (topic,) = cluster.any.call(ApiKey.METADATA, 9, {"topics": [{"name": name}]}).topics
    assert (topic.error_code, topic.is_internal) == (0, True)
    assert [len(row.replica_nodes) for row in topic.partitions] == [2] * 4
    body = {"resources": [{"resource_type": 2, "resource_name": name, "configuration_keys": None}]}
    (described,) = cluster.any.call(ApiKey.DESCRIBE_CONFIGS, 1, body).results
    own = {row.name: row.value for row in described.configs if row.config_source == TOPIC_SOURCE}
    assert own == {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(100 * 1024**2)}


@pytest.mark.kafka
def test_whole_answers_are_kafkas(ottla: str, kafka: str) -> None:
    with GroupWire(ottla, BROKERS) as ours, GroupWire(kafka, BROKERS) as theirs:
        for number, case in enumerate(case for table in TABLES.values() for case in table):
            assert run_case(ours, case) == run_case(theirs, case), (number, case)
