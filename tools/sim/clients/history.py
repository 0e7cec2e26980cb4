"""What the clients of a world were told, for the judge, and what no broker may ever do to a client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protocol.kafka.api_keys import ApiLevel
from protocol.types import TopicPartition
from tools.judge.reports import ACKED, COMMITTED, CONSUMED, PRODUCED, Report
from tools.sim.clients.holders import Holders
from tools.sim.policies import id_of
from tools.sim.world.scheduler import START_S, Scheduler

MEMBER_SESSION_S = 6.0
"""The session time-out of the members of groups."""
COMMITTED_TRANSACTION, ABORTED_TRANSACTION, UNKNOWN_TRANSACTION = "committed", "aborted", "unknown"


@dataclass
class Transaction:
    """The records of one transaction, the offsets that it commits, and how its producer was told that it ended."""

    name: str
    ids: dict[TopicPartition, list[str]] = field(default_factory=dict)
    outcome: str = ABORTED_TRANSACTION
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Ownership:
    """What a member was assigned in a generation of its group, or with its epoch (KIP-848)."""

    group: str
    generation: int
    member: str
    partitions: tuple[TopicPartition, ...]


@dataclass
class History:
    """`reports` are those of `ottla verify`. `broken`: promises of the protocol that were not kept, as sentences."""

    scheduler: Scheduler
    is_led_by: Callable[[TopicPartition, str], bool]
    """Whether ZooKeeper has that host as leader now."""
    level: ApiLevel = ApiLevel.KAFKA_4
    """Whose APIs and versions the brokers serve."""
    batch_acknowledged: Callable[[TopicPartition, bytes], None] = lambda _tp, _batch: None
    """Told of each batch that a broker has acknowledged to a producer with acks=all."""
    batch_read: Callable[[TopicPartition, bytes], None] = lambda _tp, _batch: None
    """Told of each batch that a reader got."""
    commit_acknowledged: Callable[[str, TopicPartition, int], None] = lambda _group, _tp, _offset: None
    """Told of each offset whose commit was acknowledged to a member of a group."""
    decision_told: Callable[[str, tuple[int, int]], None] = lambda _id, _instance: None
    """Told of the end of each transaction, by its transactional id, when its producer (id, epoch) is told of it."""
    is_unaware: Callable[[str, str], bool] = lambda _group, _host: False
    """Whether that broker may not know yet that it coordinates a group no longer."""
    is_compacted_away: Callable[[TopicPartition, bytes, str], bool] = lambda _tp, _batch, _host: False
    """Whether compaction has removed a producer's batch from that broker's log, and left a later one of it."""
    reports: list[Report] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    transactions: list[Transaction] = field(default_factory=list)
    owned: list[Ownership] = field(default_factory=list)
    read_committed: dict[tuple[str, TopicPartition], list[tuple[int, str]]] = field(default_factory=dict)
    """(reader, partition) -> (offset, id) of what readers of committed records got."""

    last_committed: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    """(group, partition) -> the offset of the last commit that was acknowledged."""

    batches_by_id: dict[tuple[object, int, int], bytes] = field(default_factory=dict)
    """(topic id, partition, offset) -> the batch that was read there."""

    truncating: frozenset[str] = frozenset()
    """Topics of which retention removes the oldest records."""

    instances: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Transactional id -> (producer id, epoch) of its instances."""

    fetched: list[tuple[str, Mapping[TopicPartition, int], int]] = field(default_factory=list)
    """(member, offsets that it was told are committed, number of transactions that had begun then)"""

    def __post_init__(self) -> None:
        self.holders = Holders(lambda: self.scheduler.now, MEMBER_SESSION_S, self.break_promise)

    def offsets_fetched(self, member: str, offsets: Mapping[TopicPartition, int]) -> None:
        """A member whose group commits in transactions asked for offsets."""
        self.fetched.append((member, dict(offsets), len(self.transactions)))

    def instance_began(self, producer: str, transactional_id: str, instance: tuple[int, int]) -> None:
        """A producer got its producer id and epoch: from now on, all with an older epoch are fenced."""
        known = self.instances.setdefault(transactional_id, [])
        if instance in known:
            self.break_promise(
                f"{producer} got {instance} as producer id and epoch of {transactional_id}: given before"
            )
        known.append(instance)

    def is_fenced(self, transactional_id: str, instance: tuple[int, int]) -> bool:
        """Whether a newer epoch was given."""
        producer_id, epoch = instance
        return any(
            known == producer_id and newer > epoch
            for known, newer in reversed(self.instances.get(transactional_id, ()))
        )

    def aborted_records(self) -> set[str]:
        """Of transactions whose producers know that they were aborted."""
        aborted = [one for one in self.transactions if one.outcome == ABORTED_TRANSACTION]
        return {record for one in aborted for records in one.ids.values() for record in records}

    def acknowledged_in(self, tp: TopicPartition) -> list[tuple[int | None, str]]:
        """(offset, if it is known, and id) of acknowledged and committed records."""
        found: list[tuple[int | None, str]] = [
            (report.offset, report.id)
            for report in self.reports
            if report.event == ACKED and (report.topic, report.partition) == tp
        ]
        committed = [one for one in self.transactions if one.outcome == COMMITTED_TRANSACTION]
        return found + [(None, record) for one in committed for record in one.ids.get(tp, ())]

    def break_promise(self, what: str) -> None:
        """Ends the history: the first broken promise tells most."""
        self.scheduler.is_stopped = True
        self.broken.append(f"{self.scheduler.now - START_S:.3f} s: {what}")

    def produced(self, producer: str, tp: TopicPartition, record: str) -> None:
        self._add(PRODUCED, tp, None, record, producer=producer)

    def acked(self, producer: str, tp: TopicPartition, record: str, offset: int | None) -> None:
        self._add(ACKED, tp, offset, record, producer=producer)

    def consumed(self, group: str, tp: TopicPartition, record: str, offset: int) -> None:
        self._add(CONSUMED, tp, offset, record, group=group)

    def committed(self, group: str, tp: TopicPartition, offset: int) -> None:
        self.commit_acknowledged(group, tp, offset)
        self.last_committed[group, tp] = offset
        self._add(COMMITTED, tp, offset, "", group=group)

    def check_committed(
        self, who: str, group: str, tp: TopicPartition, found: int, committed: int, broker: str
    ) -> None:
        """INV-23: a commit that was acknowledged before somebody asked that broker does not disappear."""
        if found < committed and not self.is_unaware(group, broker):
            self.break_promise(
                f"INV-23: {who} found at {broker} that {group} has committed {found} of {tp}: {committed} was acknowledged before"
            )

    def read(self, reader: str, group: str | None, tp: TopicPartition, offset: int, text: bytes) -> None:
        """The reader got a record, as a member of the group, or for itself; None: it reads committed records only."""
        record = id_of(text)
        if f"-{tp.topic}-{tp.partition}-" not in record:
            self.break_promise(f"{reader} asked for {tp} at {offset} and got a record of another partition: {record}")
        elif group is None:
            self.read_committed.setdefault((reader, tp), []).append((offset, record))
        else:
            self.consumed(group, tp, record, offset)

    def read_by_id(self, reader: str, topic_id: object, tp: TopicPartition, offset: int, batch: bytes) -> None:
        """The reader asked for a topic by its id, and got that batch."""
        self.counts["batches read by topic id"] += 1
        if self.batches_by_id.setdefault((topic_id, tp.partition, offset), batch) != batch:
            self.break_promise(
                f"{reader} read {tp} of topic id {topic_id} at {offset}, where another batch was read before"
            )

    def transaction_ended(self, transaction: Transaction, outcome: str) -> None:
        transaction.outcome = outcome
        self.counts[f"transactions {outcome}"] += 1

    def _add(
        self, event: str, tp: TopicPartition, offset: int | None, record: str, *, group: str = "", producer: str = ""
    ) -> None:
        self.counts[event] += 1
        order = len(self.reports)
        at = self.scheduler.now - START_S
        self.reports.append(
            Report(event, tp.topic, tp.partition, offset, record, group, producer, str(order), order, at)
        )
