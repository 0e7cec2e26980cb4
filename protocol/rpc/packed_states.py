"""Partition states that are packed once, even if they are sent to many brokers. Pure.

In a large cluster, a new controller sends a hundred thousand states to every broker two or three times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

import msgpack

from protocol.rpc.messages import PartitionState
from protocol.types import Assignment, LeaderAndIsr, TopicPartition

_packer = msgpack.Packer()
_pack = _packer.pack


def pack_state(
    tp: TopicPartition,
    state: LeaderAndIsr,
    assignment: Assignment,
    *,
    is_new: bool = False,
    offline_replicas: Sequence[int] = (),
) -> bytes:
    """The row of a PartitionState with these values, as msgpack."""
    topic, partition = tp
    leader, leader_epoch, isr, controller_epoch, zk_version = state
    packed: bytes = _pack(
        (
            topic,
            partition,
            controller_epoch,
            leader,
            leader_epoch,
            isr,
            zk_version,
            assignment.replicas,
            assignment.adding,
            assignment.removing,
            is_new,
            offline_replicas,
        )
    )
    return packed


def pack_states(
    partitions: Iterable[TopicPartition],
    states: Mapping[TopicPartition, LeaderAndIsr],
    assignment: Callable[[TopicPartition], Assignment],
) -> dict[TopicPartition, bytes]:
    """Like `pack_state` for each of these partitions that has a state. None is new, or has offline replicas."""
    pack = _pack
    packed = {}
    for tp in partitions:
        state = states.get(tp)
        if state is not None:
            topic, partition = tp
            leader, leader_epoch, isr, controller_epoch, version = state
            assigned = assignment(tp)
            packed[tp] = pack(
                (
                    topic,
                    partition,
                    controller_epoch,
                    leader,
                    leader_epoch,
                    isr,
                    version,
                    assigned.replicas,
                    assigned.adding,
                    assigned.removing,
                    False,
                    (),
                )
            )
    return packed


_NOT_NEW_NONE_OFFLINE: bytes = msgpack.packb(False) + msgpack.packb(())
_NEW_NONE_OFFLINE: bytes = msgpack.packb(True) + msgpack.packb(())


def marked_new(row: bytes) -> bytes:
    """A copy of `row` with `is_new` set; `row` has no offline replicas. Packing the state again would take ten times as long."""
    assert row.endswith(_NOT_NEW_NONE_OFFLINE)
    return row[: -len(_NOT_NEW_NONE_OFFLINE)] + _NEW_NONE_OFFLINE


class PackedStates(Sequence[PartitionState]):
    """Replaces a tuple of PartitionState in a request: packed for the wire, unpacked on access."""

    __slots__ = ("_packed", "_rows", "_states")

    def __init__(self, rows: Sequence[bytes]) -> None:
        self._rows = rows
        self._packed: bytes | None = None
        self._states: tuple[PartitionState, ...] | None = None

    @property
    def packed(self) -> bytes:
        """All rows as one msgpack array."""
        if self._packed is None:
            self._packed = b"".join((_packer.pack_array_header(len(self._rows)), *self._rows))
        return self._packed

    @property
    def states(self) -> tuple[PartitionState, ...]:
        if self._states is None:
            self._states = tuple(PartitionState(*msgpack.unpackb(row, use_list=False)) for row in self._rows)
        return self._states

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> PartitionState: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PartitionState]: ...

    def __getitem__(self, index: int | slice) -> PartitionState | Sequence[PartitionState]:
        return self.states[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedStates):
            return self._rows == other._rows
        return self.states == other

    def __hash__(self) -> int:
        return hash(self.states)

    def __repr__(self) -> str:
        return f"PackedStates({self.states!r})"


def pack_rows(states: Sequence[PartitionState]) -> list[bytes]:
    """Each state as a row of `PackedStates`."""
    return [_pack(state) for state in states]


def pack_body(body: Sequence[Any]) -> bytes:
    """A request's body as msgpack; parts that are already packed are copied."""
    parts: list[bytes] = [_packer.pack_array_header(len(body))]
    parts += [item.packed if isinstance(item, PackedStates) else _pack(item) for item in body]
    return b"".join(parts)
