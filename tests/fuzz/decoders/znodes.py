"""What stands in ZooKeeper, where any tool may have written, and ZooKeeper's answers to many operations at once."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from protocol.topic_ids import topic_id_text
from protocol.types import Assignment, BrokerInfo, Endpoint, LeaderAndIsr, TopicPartition
from protocol.zk import many_operations
from protocol.zk.many_operations import Refused
from protocol.zk.operations import Stat
from protocol.zk.znodes import (
    BrokerIdZNode,
    ClusterIdZNode,
    ConfigChangeZNode,
    ConfigZNode,
    ControllerEpochZNode,
    ControllerZNode,
    IsrChangeZNode,
    LogDirEventZNode,
    PartitionStateZNode,
    PreferredElectionZNode,
    ProducerIdBlockZNode,
    ReassignPartitionsZNode,
    TopicZNode,
)
from tests.fuzz.decoder import Decoder

TP = TopicPartition("orders", 3)
BROKER = BrokerInfo(1, 9, (Endpoint("PLAINTEXT", "host", 9092), Endpoint("CONTROLLER", "::1", 0)), "rack")
ASSIGNMENT = {0: Assignment((1, 2, 3)), 1: Assignment((2, 3, 1), (4,), (1,))}
T_ID = topic_id_text(uuid.UUID(int=7))

Decode = Callable[[bytes], Any]


def _decoder(name: str, decode: Decode, encode: Callable[[Any], bytes] | None, seeds: Iterable[bytes]) -> Decoder:
    """Raises ValueError and nothing else; what is decoded is encoded and decoded again, to the same."""

    def run(data: bytes) -> object:
        found = decode(data)
        if encode is not None:
            again = decode(encode(found))
            assert again == found, f"{found} became {again}"
        return found

    variants = [*seeds, *_JSON]
    return Decoder(f"znode-{name}", run, lambda: variants, (ValueError,))


_JSON = (
    b"{}",
    b"[]",
    b"null",
    b'{"version":1}',
    b"[" * 200,
    b'{"a":' * 200,
    b'"\\ud800"',
    b"9" * 600,
    b"NaN",
    b'{"a":1e999}',
)


def decoders() -> list[Decoder]:
    state = LeaderAndIsr(1, 5, (1, 2, 3), 7, 4)
    return [
        _decoder(
            "broker",
            lambda data: BrokerIdZNode.decode(1, data, 9),
            None,
            [BrokerIdZNode.encode(BROKER, 1), BrokerIdZNode.encode(BrokerInfo(1, 9, ()), 1)],
        ),
        Decoder("znode-topic", _topic, _topics, (ValueError,)),
        Decoder(
            "znode-state",
            _state,
            lambda: [
                PartitionStateZNode.encode(state),
                PartitionStateZNode.encode(LeaderAndIsr(-1, 0, (), 1, 0)),
                b'{"leader":1,"leader_epoch":2,"isr":[ 1, 2],"controller_epoch":3,"version":1}',
            ],
            (ValueError,),
        ),
        _decoder(
            "controller", ControllerZNode.decode, lambda n: ControllerZNode.encode(n, 1), [ControllerZNode.encode(3, 1)]
        ),
        _decoder(
            "controller-epoch", ControllerEpochZNode.decode, ControllerEpochZNode.encode, [b"7", b"-1", b"1_0", b" 7"]
        ),
        _decoder(
            "config", ConfigZNode.decode, ConfigZNode.encode, [ConfigZNode.encode({"retention.ms": "5", "a": "b"})]
        ),
        _decoder("config-change", ConfigChangeZNode.decode, None, [ConfigChangeZNode.encode("topics/orders")]),
        _decoder("isr-change", IsrChangeZNode.decode, None, [IsrChangeZNode.encode([TP, TP])]),
        _decoder("log-dir-event", LogDirEventZNode.decode, LogDirEventZNode.encode, [LogDirEventZNode.encode(3)]),
        _decoder(
            "reassignment",
            ReassignPartitionsZNode.decode,
            None,
            [ReassignPartitionsZNode.encode({TP: (1, 2), TopicPartition("t", 0): (3,)})],
        ),
        _decoder("election", PreferredElectionZNode.decode, None, [PreferredElectionZNode.encode([TP])]),
        _decoder(
            "producer-ids",
            ProducerIdBlockZNode.decode,
            lambda last: ProducerIdBlockZNode.encode(1, max(last - 999, 0), last) if last >= 0 else b"",
            [ProducerIdBlockZNode.encode(1, 0, 999), b""],
        ),
        _decoder("cluster-id", ClusterIdZNode.decode, None, [ClusterIdZNode.encode("abc")]),
        Decoder("zookeeper-answers", _answers, _answer_seeds, (ValueError,), bytes_max=2048),
    ]


def _outcome(decode: Callable[[], Any]) -> Any:
    try:
        return decode()
    except ValueError:
        return ValueError


def _topic(data: bytes) -> object:
    """The fast and the careful decoder find the same."""
    found = TopicZNode.decode(data)
    assert found == _outcome(lambda: TopicZNode.decode_carefully(data))
    topic_id, assignment = found
    for number, replicas in assignment.items():
        assert type(number) is int
        assert all(
            type(replica) is int for row in (replicas.replicas, replicas.adding, replicas.removing) for replica in row
        )
    assert TopicZNode.decode(TopicZNode.encode(topic_id, assignment)) == found
    return found


def _topics() -> Iterator[bytes]:
    yield TopicZNode.encode(T_ID, ASSIGNMENT)
    yield TopicZNode.encode(T_ID, {0: Assignment((1,))})
    yield TopicZNode.encode(None, {0: Assignment((1,))})
    yield json.dumps({"version": 1, "partitions": {"0": [1, 2], "\u0661": [True]}}).encode()
    yield b'{"partitions":{"0":[1.5]},"topic_id":null}'
    yield from _JSON


def _state(data: bytes) -> object:
    found = PartitionStateZNode.decode(data, 4)
    assert found == _outcome(lambda: PartitionStateZNode.decode_carefully(data, 4))
    assert PartitionStateZNode.decode(PartitionStateZNode.encode(found), 4) == found
    return found


# -- ZooKeeper's own answers ----------------------------------------------------------------------------------------------


def _answers(data: bytes) -> object:
    """A byte for the number of operations, then the message."""
    count = (data[0] if data else 0) % 8
    message = data[1:]
    reads = _outcome(lambda: many_operations.decode_reads(message, 0, count))
    versions = _outcome(lambda: many_operations.decode_versions(message, 0, count))
    if reads is not ValueError:
        short = [row if isinstance(row, Refused) else (row[0], row[1].version, row[1].mzxid) for row in reads]
        assert versions == short
        assert len(reads) == count
    if reads is ValueError:
        found = many_operations.decode_multi(message, 0, count)
        assert len(found) == count
        return found
    return reads


def _answer_seeds() -> Iterator[bytes]:
    stat = struct.pack("!qqqqiiiqiiq", *Stat._make(range(len(Stat._fields))))
    end = struct.pack("!i?i", -1, True, -1)
    read = struct.pack("!i?ii", 4, False, 0, 3) + b"abc" + stat
    refused = struct.pack("!i?ii", -1, False, -101, -101)
    yield b"\2" + read + refused + end
    yield b"\0" + end
    created = struct.pack("!i?ii", 1, False, 0, 2) + b"/a"
    yield b"\4" + struct.pack("!i?i", 5, False, 0) + stat + created + struct.pack("!i?i", 2, False, 0) + refused + end
