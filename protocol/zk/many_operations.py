"""Encodes and decodes ZooKeeper's multi and multiRead without an object for every node. Pure.

A controller reads and writes a hundred thousand nodes while a whole cluster waits. kazoo's own codec takes ten times as long.

    multi, multiRead:   (header | operation)* last-header
    header:             int32 type | bool done | int32 error        9 bytes; in the last one -1, true, -1
    operation:          create: path, data, acl, int32 flags; set: path, data, int32 version; delete, check: path, int32 version;
                        getData: path, bool watch
    answer:             (header | result)* last-header; error: int32 code; getData: data, stat; create: path; set: stat
    path, data:         int32 length (-1: null) | bytes
    stat:               68 bytes, the fields of `Stat`

Decoders raise ValueError for bytes that are not an answer to such a request.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from protocol.zk.operations import CheckOp, CreateOp, DeleteOp, Op, OpResult, SetOp, Stat
from protocol.zk.protection import ENCODED, Protection, protection_of

MULTI = 14
MULTI_READ = 22

EPHEMERAL_FLAG = 1
SEQUENCE_FLAG = 2

_CREATE, _DELETE, _GET_DATA, _SET_DATA, _CHECK, _ERROR = 1, 2, 4, 5, 13, -1

_INT = struct.Struct("!i")
_HEADER = struct.Struct("!i?i")
_HEADER_AND_INT = struct.Struct("!i?ii")
_STAT = struct.Struct("!qqqqiiiqiiq")
_MZXID_AND_VERSION = struct.Struct("!8xq16xi")
"""Two fields of a stat."""
_SET_RESULT_BYTES = _HEADER.size + _STAT.size
_VERSION_AT = _HEADER.size + 32
"""Where the result of a set has the node's new version."""

_LAST_HEADER = _HEADER.pack(-1, True, -1)
_GET_HEADER = _HEADER.pack(_GET_DATA, False, -1)
_SET_HEADER = _HEADER.pack(_SET_DATA, False, -1)
_CREATE_HEADER = _HEADER.pack(_CREATE, False, -1)
_DELETE_HEADER = _HEADER.pack(_DELETE, False, -1)
_CHECK_HEADER = _HEADER.pack(_CHECK, False, -1)


class Refused(NamedTuple):
    """The result of an operation that ZooKeeper refused: its error code."""

    code: int


def encode_reads(paths: Iterable[str]) -> bytes:
    """A multiRead of the data of these nodes, without watches."""
    pack = _INT.pack
    parts: list[bytes] = []
    for path in paths:
        text = path.encode()
        parts += (_GET_HEADER, pack(len(text)), text, b"\0")
    parts.append(_LAST_HEADER)
    return b"".join(parts)


def decode_reads(message: bytes, at: int, count: int) -> list[tuple[bytes, Stat] | Refused]:
    """(data, stat) of each node, or Refused. `at` is the position of the answer in the message."""
    results: list[tuple[bytes, Stat] | Refused] = []
    for begin, length in _read_results(message, at, count):
        if begin == 0:
            results.append(Refused(length))
        else:
            end = begin + length
            results.append((message[begin:end], Stat._make(_STAT.unpack_from(message, end))))
    return results


def decode_versions(message: bytes, at: int, count: int) -> list[tuple[bytes, int, int] | Refused]:
    """Like `decode_reads`, with only two fields of the stat: (data, version, mzxid)."""
    results: list[tuple[bytes, int, int] | Refused] = []
    unpack = _MZXID_AND_VERSION.unpack_from
    for begin, length in _read_results(message, at, count):
        if begin == 0:
            results.append(Refused(length))
        else:
            end = begin + length
            mzxid, version = unpack(message, end)
            results.append((message[begin:end], version, mzxid))
    return results


def _read_results(message: bytes, at: int, count: int) -> list[tuple[int, int]]:
    """(position, length) of the data of each result, or (0, error code)."""
    unpack = _HEADER_AND_INT.unpack_from
    results = []
    try:
        for _ in range(count):
            kind, done, _error, length = unpack(message, at)
            at += 13
            if kind == _GET_DATA:
                length = max(length, 0)
                results.append((at, length))
                at += length + _STAT.size
            elif kind == _ERROR and not done:
                results.append((0, length))
            else:
                raise ValueError(f"an answer of type {kind} to a multiRead")
        _check_end(message, at)
    except struct.error as error:
        raise ValueError(f"the answer to a multiRead is too short: {error}") from None
    return results


def encode_multi(operations: Sequence[Op], chroot: str, *, protects: bool = False) -> bytes:
    """A multi of these operations. Their paths are below `chroot`. `protects`: new nodes are protected (`protection.py`)."""
    pack = _INT.pack
    acl = ENCODED[Protection.NONE]
    parts: list[bytes] = []
    for operation in operations:
        text = (chroot + operation.path).encode()
        length = pack(len(text))
        if isinstance(operation, SetOp):
            _, data, version = operation
            parts += (_SET_HEADER, length, text, pack(len(data)), data, pack(version))
        elif isinstance(operation, CreateOp):
            data = operation.data
            if protects:
                acl = ENCODED[protection_of(operation.path)]
            flags = EPHEMERAL_FLAG * operation.ephemeral | SEQUENCE_FLAG * operation.sequence
            parts += (_CREATE_HEADER, length, text, pack(len(data)), data, acl, pack(flags))
        elif isinstance(operation, DeleteOp):
            parts += (_DELETE_HEADER, length, text, pack(operation.version))
        else:
            assert isinstance(operation, CheckOp)
            parts += (_CHECK_HEADER, length, text, pack(operation.version))
    parts.append(_LAST_HEADER)
    return b"".join(parts)


def decode_multi(message: bytes, at: int, count: int) -> list[OpResult | Refused]:
    """The result of each operation: a path (with the chroot), a new version, None, or Refused."""
    results: list[OpResult | Refused] = []
    header, number_at = _HEADER.unpack_from, _INT.unpack_from
    try:
        for _ in range(count):
            kind, done, _error = header(message, at)
            if done:
                raise ValueError(f"{len(results)} results for {count} operations")
            if kind == _SET_DATA:
                results.append(number_at(message, at + _VERSION_AT)[0])
                at += _SET_RESULT_BYTES
                continue
            at += _HEADER.size
            if kind in (_CHECK, _DELETE):
                results.append(None)
                continue
            (number,) = number_at(message, at)
            at += _INT.size
            if kind == _ERROR:
                results.append(Refused(number))
            elif kind == _CREATE:
                results.append(message[at : at + max(number, 0)].decode())
                at += max(number, 0)
            else:
                raise ValueError(f"an answer of type {kind} to a multi")
        _check_end(message, at)
    except struct.error as error:
        raise ValueError(f"the answer to a multi is too short: {error}") from None
    return results


def _check_end(message: bytes, at: int) -> None:
    if not _HEADER.unpack_from(message, at)[1]:
        raise ValueError("more results than operations")
