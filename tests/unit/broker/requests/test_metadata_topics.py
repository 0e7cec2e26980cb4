"""Topics of Metadata answers: encoded once, encoded again when they change, equal to the codec's result (NET-4)."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from broker.cluster.metadata_cache import MetadataCache
from broker.requests import metadata_topics
from broker.requests.metadata_topics import MetadataTopics
from protocol.errors import ErrorCode
from protocol.kafka import messages, metadata_codec
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.rpc.messages import PartitionState, UpdateMetadataRequest
from protocol.topic_ids import topic_id_text
from protocol.types import LEADER_DURING_DELETE, BrokerInfo, Endpoint

VERSIONS = range(SUPPORTED[ApiKey.METADATA].min, SUPPORTED[ApiKey.METADATA].max + 1)
IDS = {"large": uuid.UUID(int=1), "small": uuid.UUID(int=2), "__internal": uuid.UUID(int=3)}
LARGE = 250
LISTENER = "CLIENTS"


class World:
    """Topics `large` (250 partitions), `small` and `__internal` (one each), led by 1; brokers 1 and 2."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = MetadataCache()
        self.unreachable: set[int] = set()
        self.topics = MetadataTopics(self.cache, lambda: self.unreachable, {"__internal"})
        self.encoded: Counter[str] = Counter()
        original = metadata_codec.encode_partition

        def counted(version: int, partition: metadata_codec.MetadataPartition) -> bytes:
            self.encoded[LISTENER] += 1
            return original(version, partition)

        monkeypatch.setattr(metadata_codec, "encode_partition", counted)
        states = [state("large", number) for number in range(LARGE)]
        self.update(*states, state("small", 0), state("__internal", 0))

    def update(self, *states: PartitionState, brokers: tuple[int, ...] = (1, 2)) -> None:
        infos = tuple(BrokerInfo(b, b, (Endpoint(LISTENER if b == 1 else "OTHER", "h", 9000 + b),)) for b in brokers)
        ids = {name: topic_id_text(topic_id) for name, topic_id in IDS.items()}
        self.cache.update(UpdateMetadataRequest(1, 1, 1, states, ids, infos))

    def encodings(self, *names: str, version: int = 12) -> int:
        """How many partitions are encoded for an answer with these topics."""
        self.encoded.clear()
        for name in names:
            self.topics.encoded(LISTENER, version, name)
        return self.encoded.total()


def state(topic: str, number: int, leader: int = 1, epoch: int = 0) -> PartitionState:
    return PartitionState(topic, number, 1, leader, epoch, (1, 2), 0, (1, 2))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cached_topic_is_equal_to_the_codecs_result(world: World, version: int) -> None:
    world.update(state("small", 1, leader=2), state("small", 2, leader=3))
    body = metadata_codec.encode_response(
        version, [], "c", 1, [world.topics.encoded(LISTENER, version, name) for name in ("small", "__internal", "none")]
    )
    found = messages.decode_response(ApiKey.METADATA, version, memoryview(b"\0" * (4 + (version >= 9)) + body))[1]
    small, internal, unknown = found.topics
    known = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
    assert [(p.error_code, p.partition_index, p.leader_id) for p in small.partitions] == [
        (0, 0, 1),
        (known, 1, -1),
        (ErrorCode.LEADER_NOT_AVAILABLE, 2, -1),
    ]
    assert (small.error_code, small.name, unknown.error_code) == (0, "small", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if version >= 1:
        assert (small.is_internal, internal.is_internal) == (False, True)
    if version >= 10:
        assert small.topic_id == IDS["small"]


def test_only_changed_partitions_are_encoded_again(world: World) -> None:
    assert world.encodings("large", "small") == LARGE + 1
    assert world.encodings("large", "small") == 0
    world.update(state("small", 0, epoch=1))
    assert world.encodings("large", "small") == 1
    world.update(state("large", 7, leader=2, epoch=1))
    assert world.encodings("large", "small") == 1, "the other partitions of a large topic are not encoded again"
    assert world.encodings("large", "small", version=9) == LARGE + 1, "another version is encoded too"
    world.unreachable.add(1)
    assert world.encodings("small") == 1
    world.update(brokers=(1,))
    assert world.encodings("small") == 1


def test_a_deleted_topic_is_not_kept(world: World) -> None:
    before = world.topics.all_encoded(LISTENER, 12)
    assert len(before) == 3
    assert world.topics.all_encoded(LISTENER, 12) is before
    world.update(state("small", 0, LEADER_DURING_DELETE))
    assert len(world.topics.all_encoded(LISTENER, 12)) == 2
    unknown = world.topics.encoded(LISTENER, 12, "small")
    assert int.from_bytes(unknown[:2], "big") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("changes", [False, True])
def test_large_topics_are_encoded_in_steps_and_again_if_they_change_meanwhile(world: World, changes: bool) -> None:
    assert world.topics.partitions_to_encode(LISTENER, 12, ("large", "none")) == LARGE
    steps = world.topics.preparing(LISTENER, 12, ("large", "none"))
    next(steps)
    assert world.topics.partitions_to_encode(LISTENER, 12, ("large",)) == LARGE
    if changes:
        world.update(state("large", 0, leader=2, epoch=1))
    assert 1 <= len(list(steps)) <= LARGE // metadata_topics.PARTITIONS_IN_A_STEP + 1
    encoded = world.topics.encoded(LISTENER, 12, "large")
    assert world.encoded.total() == LARGE + changes
    assert world.encodings("large") == 0
    assert encoded == MetadataTopics(world.cache, set, ()).encoded(LISTENER, 12, "large")
