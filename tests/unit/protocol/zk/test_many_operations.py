"""multi and multiRead without kazoo's codec: the same bytes, the same results, and ValueError for invalid bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    GetData,
    MultiHeader,
    SetData,
    Transaction,
    int_struct,
    stat_struct,
    write_buffer,
    write_string,
)
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from protocol.zk import many_operations
from protocol.zk.kazoo_client import MultiRead
from protocol.zk.many_operations import Refused
from protocol.zk.operations import CheckOp, CreateOp, DeleteOp, Op, SetOp, Stat

PATHS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8).map(lambda t: "/" + t)
VERSIONS = st.integers(-1, 2**31 - 1)
OPS: st.SearchStrategy[Op] = st.one_of(
    st.builds(CreateOp, PATHS, st.binary(max_size=9), st.booleans(), st.booleans()),
    st.builds(SetOp, PATHS, st.binary(max_size=9), VERSIONS),
    st.builds(DeleteOp, PATHS, VERSIONS),
    st.builds(CheckOp, PATHS, VERSIONS),
)
LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
STATS = st.builds(Stat, LONGS, LONGS, LONGS, LONGS, INTS, INTS, INTS, LONGS, INTS, INTS, LONGS)
CODES = st.sampled_from([0, -2, -101, -103, -110, -111])
CHROOT = "/c"
BEFORE = b"head"
"""The bytes of a message before the answer."""


def kazoo_operation(op: Op) -> Any:
    path = CHROOT + op.path
    match op:
        case CreateOp():
            return Create(path, op.data, OPEN_ACL_UNSAFE, op.ephemeral + 2 * op.sequence)
        case SetOp():
            return SetData(path, op.data, op.version)
        case DeleteOp():
            return Delete(path, op.version)
        case CheckOp():
            return CheckVersion(path, op.version)


@given(st.lists(OPS, max_size=5))
def test_a_multi_is_encoded_as_kazoo_does(operations: list[Op]) -> None:
    expected = Transaction([kazoo_operation(op) for op in operations]).serialize()
    assert many_operations.encode_multi(operations, CHROOT) == bytes(expected)


@pytest.mark.parametrize(
    ("path", "acl"),
    [
        ("/brokers/topics/t", [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]),
        ("/config/users/alice", CREATOR_ALL_ACL),
        ("/delegation_token/tokens/x", CREATOR_ALL_ACL),
        ("/consumers", OPEN_ACL_UNSAFE),
    ],
)
def test_protected_nodes(path: str, acl: Any) -> None:
    """ZooKeeper takes the missing name of the scheme `auth` as kazoo has it, null, and as its own client has it, empty."""
    expected = bytes(Transaction([Create(CHROOT + path, b"x", acl, 0)]).serialize())
    expected = expected.replace(b"\0\0\0\x04auth\xff\xff\xff\xff", b"\0\0\0\x04auth\0\0\0\0")
    assert many_operations.encode_multi([CreateOp(path, b"x")], CHROOT, protects=True) == expected


@given(st.lists(PATHS, max_size=5))
def test_reads_are_encoded_as_kazoo_does(paths: list[str]) -> None:
    expected = MultiRead([GetData(path, None) for path in paths]).serialize()
    assert many_operations.encode_reads(paths) == expected


def answer(results: Sequence[tuple[int, bytes]]) -> bytes:
    parts = [MultiHeader(kind, False, 0).serialize() + body for kind, body in results]
    return BEFORE + b"".join(parts) + MultiHeader(-1, True, -1).serialize()


READS = st.lists(st.one_of(st.tuples(st.binary(max_size=9), STATS), CODES), max_size=5)


def reads_answer(results: Sequence[Any]) -> bytes:
    return answer(
        [
            (-1, int_struct.pack(result))
            if isinstance(result, int)
            else (GetData.type, write_buffer(result[0]) + stat_struct.pack(*result[1]))
            for result in results
        ]
    )


@given(READS)
def test_answers_to_reads_are_decoded_as_kazoo_does(results: list[Any]) -> None:
    message, at = reads_answer(results), len(BEFORE)
    found = many_operations.decode_reads(message, at, len(results))
    assert found == [Refused(result) if isinstance(result, int) else result for result in results]
    versions = many_operations.decode_versions(message, at, len(results))
    assert versions == [
        node if isinstance(node, Refused) else (node[0], node[1].version, node[1].mzxid) for node in found
    ]
    for ours, theirs in zip(found, MultiRead.deserialize(message, at), strict=True):
        if isinstance(ours, Refused):
            assert isinstance(theirs, EXCEPTIONS[ours.code])
        else:
            assert (ours[0], tuple(ours[1])) == (theirs[0], tuple(theirs[1]))


def test_a_node_without_data_is_empty() -> None:
    message = answer([(GetData.type, int_struct.pack(-1) + stat_struct.pack(*range(11)))])
    assert many_operations.decode_versions(message, len(BEFORE), 1) == [(b"", 4, 1)]


WRITES = st.lists(st.one_of(PATHS, STATS, st.none(), CODES), max_size=5)


def writes_answer(results: Sequence[Any]) -> bytes:
    rows = []
    for result in results:
        match result:
            case int():
                rows.append((-1, int_struct.pack(result)))
            case str():
                rows.append((Create.type, write_string(result)))
            case Stat():
                rows.append((SetData.type, stat_struct.pack(*result)))
            case None:
                rows.append((CheckVersion.type, b""))
    return answer(rows)


@given(WRITES)
def test_answers_to_a_multi(results: list[Any]) -> None:
    message = writes_answer(results)
    found = many_operations.decode_multi(message, len(BEFORE), len(results))
    expected = {int: Refused, Stat: lambda stat: stat.version}
    assert found == [expected.get(type(result), lambda same: same)(result) for result in results]


@given(READS, WRITES, st.integers(0, 300), st.binary(min_size=1, max_size=4), st.integers(-2, 2))
def test_any_bytes_are_an_answer_or_a_value_error(
    reads: list[Any], writes: list[Any], at: int, piece: bytes, more: int
) -> None:
    for message, count, decoders in (
        (reads_answer(reads), len(reads), (many_operations.decode_reads, many_operations.decode_versions)),
        (writes_answer(writes), len(writes), (many_operations.decode_multi,)),
    ):
        broken = message[: at % len(message)] + piece + message[at % len(message) + len(piece) :]
        for decode in decoders:
            for data in (broken, message[: at % len(message)]):
                try:
                    found = decode(data, len(BEFORE), count)
                except ValueError:
                    continue
                assert len(found) == count
            if more and count + more >= 0:
                with pytest.raises(ValueError):
                    decode(message, len(BEFORE), count + more)
