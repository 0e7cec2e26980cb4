"""What a test says about its records, and the verdict on them: nothing lost, nothing doubled, nothing out of order."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from ottla.cluster import OttlaCluster
from ottla.records import ID_HEADER, ID_PLACES, first_id

_numbers = count(1)


@dataclass(frozen=True)
class Result:
    """`findings`: kind -> how many, also of those that are allowed (docs/VERDICT.md). `counts`: event -> how many were reported."""

    passed: bool
    findings: Mapping[str, int]
    counts: Mapping[str, int]
    text: str

    def __str__(self) -> str:
        return self.text


class Verdict:
    """The reports of one test. The methods that report may be called by several threads, and cost microseconds.

    Each record needs an id of its own: that of `watch`, else its key, unless `id` names another place (`value`, `header:NAME`,
    `value:FIELD`).
    """

    def __init__(
        self, cluster: OttlaCluster, *, id: str | None = None, allow: Iterable[str] = (), forbid: Iterable[str] = ()
    ) -> None:
        """`allow`: kinds of findings that are no failure, `forbid`: kinds that are one, in addition to the others. Raises BadId."""
        self._cluster = cluster
        self._places = ID_PLACES if id is None else (id,)
        self._id_of = first_id(self._places)
        self._allow, self._forbid = tuple(allow), tuple(forbid)
        self._reports: list[dict[str, Any]] = []
        self._lines: list[tuple[float, str]] = []
        self.is_checked = False
        """Whether `check` was called after the last report."""
        self._beginning = cluster.ask("begin_verdict")

    # what happens to the records

    def produced(self, topic: str, id: object, *, producer: str = "", txn: str = "") -> None:
        """To be called before the record is given to the client library. `txn`: the transaction in which it is."""
        self._report("produced", topic, id=id, producer=producer, txn=txn)

    def acked(self, topic: str, partition: int, offset: int | None, id: object, *, txn: str = "") -> None:
        """The library says that the record is acknowledged. `offset` None or -1: it does not know it."""
        known = None if offset is None or offset < 0 else offset
        self._report("acked", topic, partition=partition, offset=known, id=id, txn=txn)

    def failed(self, topic: str, id: object, *, txn: str = "") -> None:
        """The library says that the record failed."""
        self._report("failed", topic, id=id, txn=txn)

    def consumed(
        self, group: str, topic: str, partition: int, offset: int, id: object, *, txn: str = "", isolation: str = ""
    ) -> None:
        """To be called when the record is processed. `txn`: in this transaction. `isolation`: `read_uncommitted` if the reader may get
        records of transactions that are not committed.
        """
        self._report(
            "consumed", topic, group=group, partition=partition, offset=offset, id=id, txn=txn, isolation=isolation
        )

    def committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        """A commit is acknowledged; `offset` is the next one to read."""
        self._report("committed", topic, group=group, partition=partition, offset=offset)

    # who of a group may read which partition: `member` is a name that the test gives to each consumer

    def assigned(self, group: str, member: str, topic: str, partition: int) -> None:
        """The library says that the member may read the partition."""
        self._report("assigned", topic, group=group, member=member, partition=partition)

    def revoked(self, group: str, member: str, topic: str, partition: int) -> None:
        """The member must give the partition up, or has lost it. To be called before the callback returns, behind its last commit."""
        self._report("revoked", topic, group=group, member=member, partition=partition)

    def left(self, group: str, member: str) -> None:
        """The member is closed or killed, or was stopped for longer than its session."""
        self._report("left", "", group=group, member=member)

    # what happens to transactions: each needs a name of its own

    def begun(self, txn: str, *, transactional_id: str = "") -> None:
        """A transaction begins."""
        self._report("begun", "", txn=txn, transactional_id=transactional_id)

    def sent_offsets(self, txn: str, group: str, topic: str, partition: int, offset: int) -> None:
        """The group's offset is sent in the transaction; `offset` is the next one to read."""
        self._report("sent-offsets", topic, txn=txn, group=group, partition=partition, offset=offset)

    def committing(self, txn: str) -> None:
        """To be called before the commit is asked for."""
        self._report("committing", "", txn=txn)

    def committed_txn(self, txn: str) -> None:
        """The library says that the transaction is committed. If it does not know, nothing is to be reported."""
        self._report("committed-txn", "", txn=txn)

    def aborted_txn(self, txn: str) -> None:
        """The library says that the transaction is aborted."""
        self._report("aborted-txn", "", txn=txn)

    def line(self, text: str) -> None:
        """A line of a program's output: `@ottla acked topic=...` is a report (docs/VERIFY.md), any other line is ignored."""
        self._lines.append((time.monotonic(), text))
        self.is_checked = False

    # the same, for confluent-kafka

    def watch(self, producer: Any, *, group: str = "") -> WatchedProducer:
        """The producer, with reports of all that it produces and of its transactions. Records get an id of their own, in the header
        `ottla-id`.

        `group`: whose offsets it sends in transactions, if that cannot be read in the group's metadata.
        """
        return WatchedProducer(producer, self, group)

    def delivered(self, error: Any, message: Any) -> None:
        """For `on_delivery` of a producer that is not watched."""
        if error is not None:
            self.failed(message.topic(), self._id_of(message))
        else:
            self.acked(message.topic(), message.partition(), message.offset(), self._id_of(message))

    def processed(self, group: str, message: Any, *, txn: str = "", isolation: str = "") -> None:
        """The group has processed this message. `txn`: in a transaction, such as `WatchedProducer.txn`."""
        place = (message.topic(), message.partition(), message.offset())
        self.consumed(group, *place, self._id_of(message), txn=txn, isolation=isolation)

    def on_commit(self, group: str) -> Callable[[Any, Sequence[Any]], None]:
        """For the setting `on_commit` of a consumer of that group."""

        def committed(error: Any, partitions: Sequence[Any]) -> None:
            for place in partitions:
                if error is None and place.error is None and place.offset >= 0:
                    self.committed(group, place.topic, place.partition, place.offset)

        return committed

    # the verdict

    def check(self, *, finished: bool = False) -> Result:
        """Heals the cluster, reads everything back, and judges it. With pytest, this happens by itself at the end of a test.

        `finished`: every group that reported must have read everything by now; else it may read the rest later. Raises AssertionError,
        also if the run is incomplete: nothing was reported, or something cannot be read.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        result = self.judge(finished=finished)
        if not result.passed:
            raise AssertionError(result.text)
        return result

    def judge(self, *, finished: bool = False) -> Result:
        """As `check`, without AssertionError."""
        self.is_checked = True
        answer = self._cluster.ask(
            "judge",
            **self._beginning,
            reports=list(self._reports),
            lines=list(self._lines),
            id_places=self._places,
            finished=finished,
            allow=self._allow,
            forbid=self._forbid,
        )
        return Result(answer["exit_code"] == 0, answer["findings"], answer["counts"], answer["text"])

    def _report(self, event: str, topic: str, *, id: object = "", **fields: Any) -> None:
        text = id.decode(errors="backslashreplace") if isinstance(id, bytes) else str(id)
        self._reports.append({"event": event, "topic": topic, "id": text.strip(), "at": time.monotonic(), **fields})
        self.is_checked = False


_METADATA = b"CGMDv2:"
_GENERATION_BYTES = 4


def group_of(group_metadata: Any) -> str:
    """The group's name in what `consumer_group_metadata` of confluent-kafka returns: librdkafka's bytes, with the generation before it.

    Raises ValueError.
    """
    if not isinstance(group_metadata, bytes) or not group_metadata.startswith(_METADATA):
        raise ValueError("the group of these offsets is not known: watch(producer, group=...) says it")
    return group_metadata[len(_METADATA) + _GENERATION_BYTES :].split(b"\0")[0].decode()


_ORDER = ("value", "key", "partition", "on_delivery", "timestamp", "headers")
"""Of the arguments of Producer.produce of confluent-kafka behind the topic: it is written in C, and has no signature."""


def _order_of(producer: Any) -> Sequence[str]:
    """The names of the arguments of its method `produce` behind the topic."""
    try:
        return list(inspect.signature(producer.produce).parameters)[1:]
    except (TypeError, ValueError):
        return _ORDER


class WatchedProducer:
    """A producer of confluent-kafka whose records are reported. It has all methods of the producer."""

    def __init__(self, producer: Any, verdict: Verdict, group: str = "") -> None:
        self._producer = producer
        self._verdict = verdict
        self._group = group
        self._name = f"producer {next(_numbers)}"
        self.txn = ""
        """The name of the transaction that has begun and not ended; empty without."""

    def produce(self, topic: str, *places: Any, **named: Any) -> None:
        """As the producer's own: arguments without a name stand in its order, which is another one for a SerializingProducer."""
        order = _order_of(self._producer)
        if len(places) > len(order):
            raise TypeError(f"produce takes at most {len(order)} arguments behind the topic, not {len(places)}")
        given = {**dict(zip(order, places, strict=False)), **named}
        id_ = f"{next(_numbers)}"
        also = given.pop("callback", None) or given.pop("on_delivery", None)
        headers: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = given.pop("headers", None)
        txn = self.txn
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        pairs.append((ID_HEADER, id_.encode()))

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self._verdict.failed(topic, id_, txn=txn)
            else:
                self._verdict.acked(topic, message.partition(), message.offset(), id_, txn=txn)
            if also is not None:
                also(error, message)

        self._verdict.produced(topic, id_, producer=self._name, txn=txn)
        try:
            self._producer.produce(topic, **{**given, "on_delivery": delivered, "headers": pairs})
        except BaseException:
            self._verdict.failed(topic, id_, txn=txn)
            raise

    def begin_transaction(self) -> None:
        """As the producer's own."""
        self._producer.begin_transaction()
        self.txn = f"txn-{next(_numbers)}"
        self._verdict.begun(self.txn)

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any, *timeout: float) -> None:
        """As the producer's own. Raises ValueError if the name of the group is not known."""
        group = self._group or group_of(group_metadata)
        self._producer.send_offsets_to_transaction(positions, group_metadata, *timeout)
        for place in positions:
            self._verdict.sent_offsets(self.txn, group, place.topic, place.partition, place.offset)

    def commit_transaction(self, *timeout: float) -> None:
        """As the producer's own. If it raises, the end is not known: the program may call it again, abort, or begin anew."""
        self._verdict.committing(self.txn)
        self._producer.commit_transaction(*timeout)
        self._verdict.committed_txn(self.txn)
        self.txn = ""

    def abort_transaction(self, *timeout: float) -> None:
        """As the producer's own. If it raises, the end is not known."""
        self._producer.abort_transaction(*timeout)
        self._verdict.aborted_txn(self.txn)
        self.txn = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)
