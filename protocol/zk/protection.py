"""Who may do what with a node that a broker creates, if `zookeeper.set.acl` is set (Kafka's `ZkData.defaultAcls`). Pure.

Only the user as whom the broker has logged in may change the node; everybody may read it, unless it has secrets.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final, NamedTuple

OPEN_TO_ALL: Final = "/consumers"
"""Old consumers, of other users, keep their own nodes there."""
SECRET: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens")
"""These nodes, and all whose paths begin so."""
ALL_RIGHTS: Final = 31
READ: Final = 1


class Protection(Enum):
    """Whom a node is for."""

    NONE = "everybody may do everything"
    READABLE = "others may read it"
    SECRET = "others may not even read it"


class ZooKeeperLogin(NamedTuple):
    """As whom to log in by the scheme `digest`. The user has no colon."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"ZooKeeperLogin({self.user!r})"


def protection_of(path: str) -> Protection:
    """That of a node with this path, without the chroot."""
    if path == OPEN_TO_ALL:
        return Protection.NONE
    return Protection.SECRET if path.startswith(SECRET) else Protection.READABLE


def _encoded(*rights: tuple[int, str, str]) -> bytes:
    parts = [struct.pack("!i", len(rights))]
    for bits, scheme, name in rights:
        parts.append(
            struct.pack(f"!ii{len(scheme)}si{len(name)}s", bits, len(scheme), scheme.encode(), len(name), name.encode())
        )
    return b"".join(parts)


WORLD: Final = ("world", "anyone")
CREATOR: Final = (ALL_RIGHTS, "auth", "")
"""All rights for those as whom the connection has logged in."""
ENCODED: Final = {
    Protection.NONE: _encoded((ALL_RIGHTS, *WORLD)),
    Protection.READABLE: _encoded(CREATOR, (READ, *WORLD)),
    Protection.SECRET: _encoded(CREATOR),
}
"""The ACL of a request that creates a node, as ZooKeeper has it: int32 count | (int32 rights | text scheme | text name)*."""
