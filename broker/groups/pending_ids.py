"""The member ids of all groups that were given out and not used yet (KIP-394), the oldest first: there are not too many. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from sys import getsizeof

from broker.groups.group.limits import GROUP_BYTES, PENDING_BYTES, PENDING_BYTES_MAX, PENDING_MAX


class PendingIds:
    """Knows of every id that is pending; also of some that expired meanwhile, which go first."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], None] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, group_id: str, member_id: str) -> None:
        key = (group_id, member_id)
        if key not in self._ids:
            self.bytes += _size(key)
            self._ids[key] = None

    def remove(self, group_id: str, member_id: str) -> None:
        """It is used, or was given back."""
        key = (group_id, member_id)
        if key in self._ids:
            del self._ids[key]
            self.bytes -= _size(key)

    def too_many(self) -> Iterator[tuple[str, str]]:
        """Takes out those that are to be forgotten: group and member id."""
        while len(self._ids) > PENDING_MAX or self.bytes > PENDING_BYTES_MAX:
            key = next(iter(self._ids))
            self.remove(*key)
            yield key


def _size(key: tuple[str, str]) -> int:
    """With a whole group for each: most often there is one for many, but an attacker names another in every request."""
    return GROUP_BYTES + PENDING_BYTES + getsizeof(key[0]) + getsizeof(key[1])
