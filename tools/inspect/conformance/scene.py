"""The names that requests use: one scene for each cluster. Pure.

Both clusters get names of the same length that differ in their prefix, so the two may be the same cluster. `normalising` replaces the
prefix by RUN.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from enum import Enum

from protocol.kafka.record_batch import build_batch

RUN = "{run}"
RECORDS = 5
FIRST_TIME_MS = 1_700_000_000_000
"""The time of the first record; each later record of a topic is a second later."""


class Where(Enum):
    """Which broker of a cluster gets a request."""

    HOME = "home"
    """The broker that the user named. It leads every partition of the topics."""
    CONTROLLER = "controller"
    GROUP = "group"
    """The coordinator of the group that the request names."""
    TRANSACTION = "transaction"
    """The coordinator of the transactional id that the request names."""


@dataclass(frozen=True)
class Scene:
    """`run` is the prefix of every name, `case` the number of the case, `home` the id of the home broker.

    `api` and `version` keep the APIs apart that change something: they run side by side.
    """

    run: str
    home: int
    case: int = 0
    api: int | None = None
    version: int | None = None
    topic_ids: dict[str, uuid.UUID] = field(default_factory=dict)
    """The ids of `topic` and `scratch`, if the cluster tells ids."""

    def at(self, case: int) -> Scene:
        return replace(self, case=case)

    def of(self, api: int, version: int) -> Scene:
        """The scene of an API that changes something, in one version."""
        return replace(self, api=api, version=version)

    @property
    def prefix(self) -> str:
        """Of the names of nothing: one that an earlier version or another API has made is not one of them."""
        return self.run if self.api is None else f"{self.run}-{self.api}v{self.version}"

    @property
    def topic(self) -> str:
        """Two partitions, with RECORDS records in partition 0. No case changes it."""
        return f"{self.run}-topic"

    @property
    def scratch(self) -> str:
        """Like `topic`, for the requests that change a topic."""
        return f"{self.run}-scratch" if self.api is None else f"{self.run}-scratch-{self.api}"

    @property
    def group(self) -> str:
        """A group without members, with an offset of partition 0 of `topic`."""
        return f"{self.run}-group"

    @property
    def transactional_id(self) -> str:
        return f"{self.run}-transaction"

    @property
    def fresh(self) -> str:
        """A name that no other case uses, for a topic or a group."""
        return f"{self.run}-case-{self.case}"

    @property
    def unknown(self) -> str:
        """The name of nothing."""
        return f"{self.prefix}-none"


def batch(
    count: int = RECORDS,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """A batch of `count` records with the times from FIRST_TIME_MS."""
    return build_batch(
        [(b"key-%d" % n, b"value-%d" % n, (), FIRST_TIME_MS + 1_000 * n) for n in range(count)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        attributes=attributes,
    )
