"""Inputs and outputs of a ZooKeeper session: stats, operations, watch events, errors. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias


class Stat(NamedTuple):
    """ZooKeeper's facts about a node, in the order of its wire format. Times are milliseconds since 1970."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class WatchKind(Enum):
    """What happened to a watched node."""

    CREATED = "CREATED"
    DELETED = "DELETED"
    CHANGED = "CHANGED"
    CHILDREN = "CHILD"


class WatchEvent(NamedTuple):
    """`path` is as given to the operation that set the watch."""

    kind: WatchKind
    path: str


WatchCallback: TypeAlias = Callable[[WatchEvent], None]


@dataclass(frozen=True, slots=True)
class CreateOp:
    """Part of a multi: create `path`; its result is the path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


class SetOp(NamedTuple):
    """Part of a multi: write `data` if the node has that version (-1: any); its result is the new Stat."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class DeleteOp:
    """Part of a multi: remove the node if it has that version (-1: any); its result is None."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class CheckOp:
    """Part of a multi: fail the whole multi unless the node has that version (-1: exists); its result is None."""

    path: str
    version: int = -1


Op: TypeAlias = CreateOp | SetOp | DeleteOp | CheckOp
OpResult: TypeAlias = Stat | str | None


class ZkError(Exception):
    """A ZooKeeper operation failed; the text names the path."""


class NoNode(ZkError):
    """The node does not exist (or the parent in which to create it)."""


class NodeExists(ZkError):
    """The node to create exists."""


class BadVersion(ZkError):
    """The node has another version than the operation expected."""


class NotEmpty(ZkError):
    """The node to delete has children."""


class ConnectionLoss(ZkError):
    """Not connected, or the connection broke before the answer: it is unknown whether a write was applied (BUG-5)."""


class SessionExpired(ZkError):
    """The session has ended, and with it all its ephemeral nodes and watches. A new one follows automatically."""


class RequestTooLarge(ZkError):
    """ZooKeeper would close the connection because of this size. Nothing was sent."""


class ZooKeeperUnavailable(ZkError):
    """No session could be opened; the text names the address."""


class MultiFailed(ZkError):
    """A multi changed nothing because its operation number `index` failed with `error`."""

    def __init__(self, index: int, error: ZkError) -> None:
        super().__init__(f"operation {index} of a multi failed: {type(error).__name__}: {error}")
        self.index = index
        self.error = error
