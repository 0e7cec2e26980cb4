"""What a test reports becomes reports of `ottla verify`, also by a producer that is watched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records import ID_HEADER, BadId, first_id
from ottla.verdict import Verdict
from tools.judge.reports import Report


@dataclass
class Message:
    """What confluent-kafka gives to a delivery callback."""

    of_topic: str = "orders"
    of_key: bytes | None = None
    of_value: bytes | None = None
    of_headers: list[tuple[str, bytes]] | None = None
    at: tuple[int, int] = (0, 17)

    def topic(self) -> str:
        return self.of_topic

    def key(self) -> bytes | None:
        return self.of_key

    def value(self) -> bytes | None:
        return self.of_value

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self.of_headers

    def partition(self) -> int:
        return self.at[0]

    def offset(self) -> int:
        return self.at[1]


class Cluster:
    """Keeps what the owner is asked, and judges that all is well."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(self, request: str, **arguments: Any) -> Any:
        self.asked.append((request, arguments))
        if request == "begin_verdict":
            return {"ends": [["orders", 0, 17]], "began_s": 1.0}
        return {"exit_code": 0, "findings": {}, "counts": {}, "text": ""}

    def reports(self) -> list[Report]:
        """Of the last verdict, as the owner reads them."""
        return [Report(**fields) for fields in self.asked[-1][1]["reports"]]


def verdict_on(cluster: Cluster, **options: Any) -> Verdict:
    return Verdict(cluster, **options)  # type: ignore[arg-type]


class Producer:
    """Delivers at once; `error`: what every delivery says. Raises BufferError while it is full."""

    def __init__(self) -> None:
        self.error: object = None
        self.is_full = False
        self.sent: list[Message] = []

    def produce(
        self,
        topic: str,
        *,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        on_delivery: Callable[[Any, Any], None],
        headers: list[tuple[str, bytes]],
    ) -> None:
        if self.is_full:
            raise BufferError
        message = Message(topic, key, value, headers, (max(partition, 0), len(self.sent)))
        self.sent.append(message)
        on_delivery(self.error, message)

    def flush(self, timeout: float) -> int:
        return 0


class Transactional(Producer):
    """`failing`: what the next end of a transaction raises."""

    failing: Exception | None = None

    def begin_transaction(self) -> None:
        pass

    def send_offsets_to_transaction(self, positions: list[Any], metadata: bytes, timeout: float) -> None:
        pass

    def commit_transaction(self, timeout: float) -> None:
        if self.failing is not None:
            raise self.failing

    abort_transaction = commit_transaction


@dataclass
class Position:
    topic: str
    partition: int
    offset: int


def events(reports: list[Report]) -> list[str]:
    return [report.event for report in reports]


def test_a_watched_producer_gives_each_record_an_id_and_reports_it() -> None:
    cluster, producer, told = Cluster(), Producer(), []
    verdict = verdict_on(cluster)
    watched = verdict.watch(producer)
    watched.produce("orders", b"a", "same key", headers={"mine": b"1"}, callback=lambda *said: told.append(said))
    watched.produce("orders", b"b", "same key", 2)
    assert watched.flush(1) == 0
    assert verdict.check().passed
    assert cluster.asked[-1][1]["ends"] == [["orders", 0, 17]], "what was there before is not the test's"
    reports = cluster.reports()
    assert events(reports) == ["produced", "acked", "produced", "acked"]
    assert reports[0].id == reports[1].id != reports[2].id == reports[3].id
    assert (reports[3].partition, reports[3].offset) == (2, 1)
    assert reports[0].producer == reports[2].producer != ""
    assert producer.sent[0].of_headers == [("mine", b"1"), (ID_HEADER, reports[0].id.encode())]
    assert len(told) == 1


class Serializing:
    """Has its arguments in another order, as SerializingProducer of confluent-kafka."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}

    def produce(self, topic: str, key: Any = None, value: Any = None, on_delivery: Any = None, **more: Any) -> None:
        self.sent = {"topic": topic, "key": key, "value": value, **more}


def test_the_arguments_stand_in_the_order_of_the_producer() -> None:
    producer = Serializing()
    verdict_on(Cluster()).watch(producer).produce("orders", "key", "value")
    assert (producer.sent["key"], producer.sent["value"]) == ("key", "value")
    with pytest.raises(TypeError):
        verdict_on(Cluster()).watch(Producer()).produce("orders", *range(9))


def test_a_record_that_is_refused_has_failed() -> None:
    """BufferError: the program may produce it again."""
    cluster, producer = Cluster(), Producer()
    verdict = verdict_on(cluster)
    watched = verdict.watch(producer)
    producer.is_full = True
    with pytest.raises(BufferError):
        watched.produce("orders", b"a")
    producer.is_full, producer.error = False, "timed out"
    watched.produce("orders", b"a")
    verdict.judge()
    assert events(cluster.reports()) == ["produced", "failed", "produced", "failed"]


def test_who_owns_which_partition() -> None:
    cluster = Cluster()
    verdict = verdict_on(cluster)
    verdict.assigned("billing", "one", "orders", 0)
    verdict.revoked("billing", "one", "orders", 0)
    verdict.left("billing", "one")
    verdict.judge()
    assert [
        (report.event, report.group, report.member, report.topic, report.partition) for report in cluster.reports()
    ] == [
        ("assigned", "billing", "one", "orders", 0),
        ("revoked", "billing", "one", "orders", 0),
        ("left", "billing", "one", "", None),
    ]


def test_the_callbacks_of_confluent_kafka() -> None:
    cluster = Cluster()
    verdict = verdict_on(cluster)

    @dataclass
    class Place:
        topic: str
        partition: int
        offset: int
        error: object = None

    verdict.delivered(None, Message(of_key=b"order 1"))
    verdict.delivered("timed out", Message(of_key=b"order 2"))
    verdict.delivered(None, Message(of_key=b"order 3", at=(1, -1)))
    verdict.processed("billing", Message(of_key=b"key", of_headers=[(ID_HEADER, b"8")]))
    verdict.on_commit("billing")(None, [Place("orders", 0, 18), Place("orders", 1, -1001), Place("orders", 2, 5, "no")])
    verdict.on_commit("billing")("failed", [Place("orders", 0, 19)])
    verdict.judge()
    assert [(report.event, report.id, report.offset) for report in cluster.reports()] == [
        ("acked", "order 1", 17),
        ("failed", "order 2", None),
        ("acked", "order 3", None),
        ("consumed", "8", 17),
        ("committed", "", 18),
    ]


def test_a_report_after_a_check_is_not_checked() -> None:
    verdict = verdict_on(Cluster())
    for report in (
        lambda: verdict.produced("orders", 1),
        lambda: verdict.line("@ottla failed topic=orders id=1"),
    ):
        verdict.check()
        assert verdict.is_checked
        report()
        assert not verdict.is_checked


@given(st.text(max_size=20), st.text(max_size=20))
def test_the_id_of_a_report_is_the_one_that_is_read_back(key: str, id_: str) -> None:
    """Whatever a key is: the record is found again by the text that was reported."""
    cluster = Cluster()
    verdict = verdict_on(cluster, id="key")
    verdict.produced("orders", key)
    verdict.produced("orders", key.encode())
    verdict.judge()
    found = {report.id for report in cluster.reports()}
    assert found == {first_id(("key",))(Message(of_key=key.encode()))}
    with_header = Message(of_key=key.encode(), of_headers=[(ID_HEADER, id_.encode())])
    assert first_id((f"header:{ID_HEADER}", "key"))(with_header) == (id_.strip() or key.strip())


def test_the_place_of_an_id_is_checked() -> None:
    with pytest.raises(BadId, match="'number' is not key, value"):
        verdict_on(Cluster(), id="number")


METADATA = b"CGMDv2:\x00\x00\x00\x07billing\x00member-1\x00"


def test_a_watched_producer_reports_its_transactions() -> None:
    cluster, producer = Cluster(), Transactional()
    verdict = verdict_on(cluster)
    watched = verdict.watch(producer)
    watched.produce("orders", b"a")
    watched.begin_transaction()
    verdict.processed("billing", Message(of_key=b"x"), txn=watched.txn)
    watched.produce("invoices", b"b")
    watched.send_offsets_to_transaction([Position("orders", 0, 18)], METADATA, 5.0)
    watched.commit_transaction(5.0)
    watched.begin_transaction()
    producer.error = "purged"
    watched.produce("invoices", b"c")
    watched.abort_transaction(5.0)
    assert watched.txn == ""
    verdict.check()
    reports = cluster.reports()
    assert events(reports) == [
        *("produced", "acked"),
        *("begun", "consumed", "produced", "acked", "sent-offsets", "committing", "committed-txn"),
        *("begun", "produced", "failed", "aborted-txn"),
    ]
    first, second = reports[2].txn, reports[9].txn
    assert [report.txn for report in reports] == ["", "", *[first] * 7, *[second] * 4]
    assert "" != first != second != ""
    sent = reports[6]
    assert (sent.group, sent.topic, sent.partition, sent.offset) == ("billing", "orders", 0, 18)


def test_a_transaction_whose_end_is_not_known_is_neither_committed_nor_aborted() -> None:
    """The program may try again: then it is the same transaction."""
    cluster, producer = Cluster(), Transactional()
    verdict = verdict_on(cluster)
    watched = verdict.watch(producer)
    watched.begin_transaction()
    name = watched.txn
    producer.failing = TimeoutError()
    with pytest.raises(TimeoutError):
        watched.commit_transaction(5.0)
    with pytest.raises(TimeoutError):
        watched.abort_transaction(5.0)
    verdict.check()
    assert events(cluster.reports()) == ["begun", "committing"]
    producer.failing = None
    watched.commit_transaction(5.0)
    verdict.check()
    assert [(report.event, report.txn) for report in cluster.reports()[2:]] == [
        ("committing", name),
        ("committed-txn", name),
    ]


def test_a_group_that_is_not_in_its_metadata_must_be_named() -> None:
    cluster = Cluster()
    verdict = verdict_on(cluster)
    with pytest.raises(ValueError, match="group="):
        verdict.watch(Transactional()).send_offsets_to_transaction([], object(), 5.0)
    watched = verdict.watch(Transactional(), group="billing")
    watched.begin_transaction()
    watched.send_offsets_to_transaction([Position("orders", 0, 18)], object(), 5.0)
    verdict.check()
    assert cluster.reports()[-1].group == "billing"
