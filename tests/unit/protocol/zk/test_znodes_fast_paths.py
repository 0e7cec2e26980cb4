"""The quick decoders of states and assignments agree with the careful ones, also for invalid content (FMT-2)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.types import Assignment, LeaderAndIsr, TopicPartition
from protocol.zk import znodes
from protocol.zk.znodes import PartitionStateZNode, TopicZNode

NUMBERS = st.one_of(st.integers(-3, 5), st.integers(-(10**20), 10**20))
ODD = st.one_of(st.booleans(), st.none(), st.floats(), st.text(max_size=3), st.lists(st.integers(0, 2), max_size=2))
VALUES = st.one_of(NUMBERS, ODD)
EPOCHS = st.integers(0, 2**31 - 1)
ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def outcome(decode: Callable[..., Any], *arguments: Any) -> Any:
    """The result with the types of all numbers in it, or that it was refused."""
    try:
        return repr(decode(*arguments))
    except ValueError:
        return ValueError


def mutated(data: bytes, at: int, piece: bytes) -> bytes:
    at %= len(data) + 1
    return data[:at] + piece + data[at + len(piece) :]


def check_state(data: bytes) -> None:
    assert outcome(PartitionStateZNode.decode, data, 7) == outcome(PartitionStateZNode.decode_carefully, data, 7)


def check_topic(data: bytes) -> None:
    assert outcome(TopicZNode.decode, data) == outcome(TopicZNode.decode_carefully, data)


STATES = st.fixed_dictionaries(
    {
        "controller_epoch": VALUES,
        "leader": VALUES,
        "version": st.just(1),
        "leader_epoch": VALUES,
        "isr": st.one_of(st.lists(VALUES, max_size=4), ODD),
    }
)


@given(STATES, st.booleans(), st.integers(0, 200), st.binary(max_size=3))
def test_states(state: dict[str, Any], is_compact: bool, at: int, piece: bytes) -> None:
    data = json.dumps(state, separators=(",", ":") if is_compact else None).encode()
    check_state(data)
    check_state(mutated(data, at, piece))
    check_state(data.decode().encode("utf-16"))


@pytest.mark.parametrize("number", ["01", "-0", "0", "-1", "1.0", "1e3", "+1", " 1", "true", "9" * 30, "1_0", "٣", ""])
@pytest.mark.parametrize("isr", ["{}", "1,{}", "{},1", "{0},{0}"])
def test_unusual_numbers_are_decoded_as_by_the_careful_decoders(number: str, isr: str) -> None:
    members = isr.format(number)
    check_state(f'{{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[{members}]}}'.encode())
    check_state(f'{{"controller_epoch":{number},"leader":1,"version":1,"leader_epoch":0,"isr":[1]}}'.encode())
    check_state(f'{{"controller_epoch":1,"leader":{number},"version":1,"leader_epoch":{number},"isr":[]}}'.encode())
    check_topic(f'{{"partitions":{{"0":[{members}]}},"topic_id":"{ID}","version":3}}'.encode())
    check_topic(f'{{"partitions":{{"{number}":[1]}},"topic_id":"{ID}","version":3}}'.encode())


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(-1, 9), EPOCHS, EPOCHS)
def test_an_encoded_state_equals_json_dumps(isr: list[int], leader: int, epoch: int, controller_epoch: int) -> None:
    state = LeaderAndIsr(leader, epoch, tuple(isr), controller_epoch, 3)
    expected = {"controller_epoch": controller_epoch, "leader": leader, "version": 1, "leader_epoch": epoch, "isr": isr}
    assert PartitionStateZNode.encode(state) == json.dumps(expected, separators=(",", ":")).encode()
    assert PartitionStateZNode.decode(PartitionStateZNode.encode(state), 3) == state


TABLES = st.one_of(
    st.dictionaries(
        st.one_of(st.integers(0, 20).map(str), st.sampled_from(["²", "٣", "x", "", "-1", "01"])),
        st.one_of(st.lists(VALUES, max_size=3), ODD),
        max_size=4,
    ),
    ODD,
)
TOPICS = st.fixed_dictionaries(
    {"partitions": TABLES},
    optional={
        "topic_id": st.one_of(st.just(ID), ODD),
        "adding_replicas": st.one_of(st.just({}), TABLES),
        "removing_replicas": st.one_of(st.just({}), TABLES),
        "version": VALUES,
    },
)


@given(TOPICS, st.integers(0, 200), st.binary(max_size=3))
def test_topics(topic: dict[str, Any], at: int, piece: bytes) -> None:
    data = json.dumps(topic, separators=(",", ":")).encode()
    check_topic(data)
    check_topic(mutated(data, at, piece))
    check_topic(json.dumps(topic, ensure_ascii=False).encode("utf-16"))


def test_true_is_not_broker_1() -> None:
    """1 == True, so the cache could return the assignment that was decoded before."""
    assert TopicZNode.decode(b'{"partitions":{"0":[1,2]}}') == (None, {0: Assignment((1, 2))})
    for text in ('{"partitions":{"0":[true,2]}}', '{"partitions":{"0":[1.0,2]}}'):
        for encoding in ("utf-8", "utf-16", "utf-32"):
            with pytest.raises(ValueError, match="whole number"):
                TopicZNode.decode(text.encode(encoding))


def test_usual_content_does_not_need_the_careful_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the careful decoder was asked")

    state, topic = LeaderAndIsr(3, 8, (3, 1), 5, 2), {0: Assignment((1, 2)), 1: Assignment((1, 2))}
    written = PartitionStateZNode.encode(state), TopicZNode.encode(ID, topic)
    monkeypatch.setattr(znodes, "_decode", refuse)
    assert PartitionStateZNode.decode(written[0], 2) == state
    topic_id, found = TopicZNode.decode(written[1])
    assert (topic_id, found) == (ID, topic)
    assert found[0] is found[1], "equal assignments are one object"


@given(
    st.lists(
        st.builds(
            LeaderAndIsr, st.integers(-1, 3), EPOCHS, st.lists(st.integers(0, 3), max_size=3).map(tuple), EPOCHS, EPOCHS
        ),
        max_size=6,
    )
)
def test_states_encoded_together_have_kafkas_form(states: list[LeaderAndIsr]) -> None:
    encoded = PartitionStateZNode.encode_each(states)
    assert encoded == [PartitionStateZNode.encode(state) for state in states]
    for data, (leader, leader_epoch, isr, controller_epoch, version) in zip(encoded, states, strict=True):
        names = ("controller_epoch", "leader", "version", "leader_epoch", "isr")
        values = (controller_epoch, leader, 1, leader_epoch, list(isr))
        assert data == json.dumps(dict(zip(names, values, strict=True)), separators=(",", ":")).encode()
        assert PartitionStateZNode.decode(data, version) == (leader, leader_epoch, isr, controller_epoch, version)


def test_paths_together_are_paths_alone() -> None:
    partitions = [TopicPartition(topic, number) for topic in ("a", "b.c_d-0") for number in (0, 12)]
    assert PartitionStateZNode.paths(partitions) == [PartitionStateZNode.path(tp) for tp in partitions]
