"""What a test says about its records, and the verdict on them: nothing lost, nothing doubled, nothing out of order."""

from __future__ import annotations

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

    def produced(self, topic: str, id: object, *, producer: str = "") -> None:
        """To be called before the record is given to the client library."""
        self._report("produced", topic, id=id, producer=producer)

    def acked(self, topic: str, partition: int, offset: int | None, id: object) -> None:
        """The library says that the record is acknowledged. `offset` None or -1: it does not know it."""
        known = None if offset is None or offset < 0 else offset
        self._report("acked", topic, partition=partition, offset=known, id=id)

    def failed(self, topic: str, id: object) -> None:
        """The library says that the record failed."""
        self._report("failed", topic, id=id)

    def consumed(self, group: str, topic: str, partition: int, offset: int, id: object) -> None:
        """To be called when the record is processed."""
        self._report("consumed", topic, group=group, partition=partition, offset=offset, id=id)

    def committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        """A commit is acknowledged; `offset` is the next one to read."""
        self._report("committed", topic, group=group, partition=partition, offset=offset)

    def line(self, text: str) -> None:
        """A line of a program's output: `@ottla acked topic=...` is a report (docs/VERIFY.md), any other line is ignored."""
        self._lines.append((time.monotonic(), text))
        self.is_checked = False

    # the same, for confluent-kafka

    def watch(self, producer: Any) -> WatchedProducer:
        """The producer, with reports of all that it produces. Records get an id of their own, in the header `ottla-id`."""
        return WatchedProducer(producer, self)

    def delivered(self, error: Any, message: Any) -> None:
        """For `on_delivery` of a producer that is not watched."""
        if error is not None:
            self.failed(message.topic(), self._id_of(message))
        else:
            self.acked(message.topic(), message.partition(), message.offset(), self._id_of(message))

    def processed(self, group: str, message: Any) -> None:
        """The group has processed this message."""
        self.consumed(group, message.topic(), message.partition(), message.offset(), self._id_of(message))

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


class WatchedProducer:
    """A producer of confluent-kafka whose records are reported. It has all methods of the producer."""

    def __init__(self, producer: Any, verdict: Verdict) -> None:
        self._producer = producer
        self._verdict = verdict
        self._name = f"producer {next(_numbers)}"

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        on_delivery: Callable[[Any, Any], None] | None = None,
        timestamp: int = 0,
        headers: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = None,
        callback: Callable[[Any, Any], None] | None = None,
    ) -> None:
        """As the producer's own."""
        id_ = f"{next(_numbers)}"
        also = on_delivery or callback
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        pairs.append((ID_HEADER, id_.encode()))

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self._verdict.failed(topic, id_)
            else:
                self._verdict.acked(topic, message.partition(), message.offset(), id_)
            if also is not None:
                also(error, message)

        self._verdict.produced(topic, id_, producer=self._name)
        try:
            self._producer.produce(
                topic,
                value=value,
                key=key,
                partition=partition,
                on_delivery=delivered,
                timestamp=timestamp,
                headers=pairs,
            )
        except BaseException:
            self._verdict.failed(topic, id_)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)
