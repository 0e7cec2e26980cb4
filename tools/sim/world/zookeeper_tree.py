"""ZooKeeper's tree: nodes, versions, transactions, and what each operation answers. Pure.

`Refused` has ZooKeeper's error code. Every change calls `changed(kind, path)`, from which the server fires watches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from protocol.zk.operations import CheckOp, CreateOp, DeleteOp, Op, SetOp, Stat

NO_NODE, BAD_VERSION, NO_CHILDREN_FOR_EPHEMERALS, NODE_EXISTS, NOT_EMPTY = -101, -103, -108, -110, -111
RUNTIME_INCONSISTENCY = -2
DATA, CHILDREN = "data", "children"
CREATED, DELETED, CHANGED, CHILD = "CREATED", "DELETED", "CHANGED", "CHILD"


class Refused(Exception):
    """An operation changed nothing. `code` is ZooKeeper's."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class MultiRefused(Exception):
    """The operation with that index of a multi was refused, so none was done."""

    def __init__(self, index: int, code: int) -> None:
        super().__init__(index, code)
        self.index = index
        self.code = code


@dataclass
class Node:
    """One znode. `owner`: the session of an ephemeral node; 0 for others."""

    data: bytes
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    pzxid: int
    owner: int = 0
    version: int = 0
    created: int = 0
    """How many children were created: the number of the next sequential one."""
    children: dict[str, None] = field(default_factory=dict)

    def stat(self) -> Stat:
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime_ms,
            self.mtime_ms,
            self.version,
            self.created * 2 - len(self.children),  # creations and deletions
            0,
            self.owner,
            len(self.data),
            len(self.children),
            self.pzxid,
        )


class ZooKeeperTree:
    """The nodes by their paths. The root is "/"."""

    def __init__(self, wall_ms: Callable[[], int], changed: Callable[[str, str], None]) -> None:
        self.zxid = 0
        self.nodes: dict[str, Node] = {"/": Node(b"", 0, 0, 0, 0, 0)}
        self._wall_ms = wall_ms
        self._changed = changed

    def get(self, path: str) -> Node:
        """Raises Refused."""
        node = self.nodes.get(path)
        if node is None:
            raise Refused(NO_NODE)
        return node

    def create(self, path: str, data: bytes, *, owner: int = 0, is_sequential: bool = False) -> str:
        """The path of the new node. Raises Refused."""
        parent_path = parent_of(path)
        parent = self.get(parent_path)
        if is_sequential:
            path += f"{parent.created:010d}"
        if path in self.nodes:
            raise Refused(NODE_EXISTS)
        if parent.owner:
            raise Refused(NO_CHILDREN_FOR_EPHEMERALS)
        self.zxid += 1
        now = self._wall_ms()
        self.nodes[path] = Node(data, self.zxid, self.zxid, now, now, self.zxid, owner)
        parent.children[path.rpartition("/")[2]] = None
        parent.created += 1
        parent.pzxid = self.zxid
        self._changed(CREATED, path)
        self._changed(CHILD, parent_path)
        return path

    def set(self, path: str, data: bytes, version: int) -> Node:
        """Raises Refused."""
        node = self._checked(path, version)
        self.zxid += 1
        node.data, node.mzxid, node.mtime_ms = data, self.zxid, self._wall_ms()
        node.version += 1
        self._changed(CHANGED, path)
        return node

    def delete(self, path: str, version: int) -> None:
        """Raises Refused."""
        if self._checked(path, version).children:
            raise Refused(NOT_EMPTY)
        self.zxid += 1
        del self.nodes[path]
        parent_path = parent_of(path)
        parent = self.nodes[parent_path]
        del parent.children[path.rpartition("/")[2]]
        parent.pzxid = self.zxid
        self._changed(DELETED, path)
        self._changed(CHILD, parent_path)

    def _checked(self, path: str, version: int) -> Node:
        node = self.get(path)
        if version not in (-1, node.version):
            raise Refused(BAD_VERSION)
        return node

    def multi(self, operations: Sequence[Op], session_id: int) -> list[Op]:
        """Does all of them, in one transaction, or none. Returns them, with the paths of sequential nodes. Raises MultiRefused."""
        self._rehearse(operations)
        before = self.zxid
        done = []
        for operation in operations:
            self.zxid = before  # all of a multi have one transaction id
            done.append(self._apply(operation, session_id))
        self.zxid = before + 1
        return done

    def _apply(self, operation: Op, session_id: int) -> Op:
        """The operation, with the path of a sequential node."""
        match operation:
            case CreateOp():
                owner = session_id if operation.ephemeral else 0
                path = self.create(operation.path, operation.data, owner=owner, is_sequential=operation.sequence)
                return replace(operation, path=path)
            case SetOp():
                self.set(operation.path, operation.data, operation.version)
            case DeleteOp():
                self.delete(operation.path, operation.version)
            case CheckOp():
                self._checked(operation.path, operation.version)
        return operation

    def _rehearse(self, operations: Sequence[Op]) -> None:
        """Finds what would be refused, on a copy of the nodes that are touched."""
        rehearsal = ZooKeeperTree(self._wall_ms, lambda _kind, _path: None)
        touched = {path: None for operation in operations for path in (operation.path, parent_of(operation.path))}
        for operation in operations:
            if isinstance(operation, CreateOp) and operation.sequence and parent_of(operation.path) in self.nodes:
                first = self.nodes[parent_of(operation.path)].created
                touched.update({f"{operation.path}{first + more:010d}": None for more in range(len(operations))})
        for path in touched:
            node = self.nodes.get(path)
            if node is not None:
                rehearsal.nodes[path] = Node(**(vars(node) | {"children": dict(node.children)}))
            elif path == "/":
                continue
        for index, operation in enumerate(operations):
            try:
                rehearsal._apply(operation, 1)
            except Refused as refused:
                raise MultiRefused(index, refused.code) from None

    def end_session(self, session_id: int) -> None:
        """Removes the session's ephemeral nodes, in one transaction."""
        before = self.zxid
        for path in [path for path, node in self.nodes.items() if node.owner == session_id]:
            self.zxid = before
            self.delete(path, -1)
        self.zxid = before + 1


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"
