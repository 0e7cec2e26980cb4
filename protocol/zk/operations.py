"""Inputs and outputs of a ZooKeeper session: stats, operations, watch events, errors. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias


class Stat(NamedTuple):
    """ZooKeeper's metadata of a node, in the order of its wire format. Times are in milliseconds since 1970."""

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
    """`path` is the path that was passed to the operation that set the watch."""

    kind: WatchKind
    path: str


WatchCallback: TypeAlias = Callable[[WatchEvent], None]


@dataclass(frozen=True, slots=True)
class CreateOp:
    """Part of a multi: creates `path`; with `sequence`, ZooKeeper appends ten digits to it. Its result is the path of the new node."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class SetOp(NamedTuple):
    """Part of a multi: writes `data` if the node has this version (-1: any). Its result is the node's new version."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class DeleteOp:
    """Part of a multi: removes the node if it has this version (-1: any). Its result is None."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class CheckOp:
    """Part of a multi: fails the whole multi unless the node has this version (-1: any). Its result is None."""

    path: str
    version: int = -1


Op: TypeAlias = CreateOp | SetOp | DeleteOp | CheckOp
OpResult: TypeAlias = int | str | None


class ZkError(Exception):
    """A ZooKeeper operation failed. The message names the path."""


class NoNode(ZkError):
    """The node, or the parent of the node to create, does not exist."""


class NodeExists(ZkError):
    """The node to create exists already."""


class BadVersion(ZkError):
    """The node has another version than the operation expected."""


class NotEmpty(ZkError):
    """The node to delete has children."""


class ConnectionLoss(ZkError):
    """Not connected, or the connection broke before the answer: it is unknown whether a write was applied (BUG-5)."""


class SessionExpired(ZkError):
    """The session has ended, with all its ephemeral nodes and watches. A new session is opened automatically."""


class RequestTooLarge(ZkError):
    """The request was not sent, because ZooKeeper would close the connection for its size."""


class ZooKeeperUnavailable(ZkError):
    """No session could be opened. The message says why."""


class MultiFailed(ZkError):
    """A multi changed nothing because its operation number `index` failed with `error`."""

    def __init__(self, index: int, error: ZkError) -> None:
        super().__init__(f"operation {index} of a multi failed: {type(error).__name__}: {error}")
        self.index = index
        self.error = error
