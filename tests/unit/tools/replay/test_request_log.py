"""RPL-5: Kafka's request log becomes a trace."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow
import pytest
from click.testing import CliRunner

from tools.replay.traces.check import check
from tools.replay.traces.request_log import Found, ImportOptions, _read_split, import_request_log
from tools.replay.traces.schema import Trace, TraceError
from tools.replay.traces.source_commands import import_request_log as command

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.thorough, pytest.mark.timeout(600)]
"""Each test is a Spark job or several. `test_trace_commands.py` has one for the quick run."""

BROKER = "10.0.0.1:9092"
TOPIC_ID = "OEOSgbEWQf2ESyLe5ou6FQ"


def line(
    second: float,
    api: str,
    request: Any,
    response: Any,
    client: str = "app",
    total_ms: float = 10.0,
    port: int = 5001,
    **more: Any,
) -> str:
    """A line of Kafka 3.9, shortened: header, request, answer, connection and times are as there."""
    body = {
        "isForwarded": False,
        "requestHeader": {"requestApiKey": 0, "clientId": client, "requestApiKeyName": api},
        "request": request,
        "response": response,
        "connection": f"{BROKER}-10.0.9.9:{port}-3",
        "totalTimeMs": total_ms,
        "requestQueueTimeMs": 0.5,
        "localTimeMs": 1.0,
        "listener": "PLAINTEXT",
        **more,
    }
    text = json.dumps(body, separators=(",", ":"))
    clock = f"{second:06.3f}".replace(".", ",")
    return f"[2026-01-31 12:00:{clock}] DEBUG Completed request:{text} (kafka.request.logger)"


def produced(second: float, base_offset: int, size: int, acks: int = -1, partition: int = 0, **more: Any) -> str:
    answer = [
        {"name": "orders", "partitionResponses": [{"index": partition, "errorCode": 0, "baseOffset": base_offset}]}
    ]
    batch = {"index": partition, "recordsSizeInBytes": size}
    request = {"transactionalId": None, "acks": acks, "topicData": [{"name": "orders", "partitionData": [batch]}]}
    return line(second, "PRODUCE", request, {"responses": answer} if acks else "", **more)


def fetched(
    second: float,
    offsets: dict[int, int],
    sizes: dict[int, int],
    session: tuple[int, int] = (0, -1),
    end: int = 30,
    **more: Any,
) -> str:
    asked = [{"partition": partition, "fetchOffset": offset} for partition, offset in offsets.items()]
    told = [
        {"partitionIndex": partition, "errorCode": 0, "highWatermark": end, "recordsSizeInBytes": size}
        for partition, size in sizes.items()
    ]
    request = {
        **{"maxWaitMs": 500, "minBytes": 1, "maxBytes": 1000, "sessionId": session[0], "sessionEpoch": session[1]},
        "topics": [{"topicId": TOPIC_ID, "partitions": asked}] if asked else [],
        "forgottenTopicsData": [],
        **more.pop("request", {}),
    }
    response = {
        "sessionId": 77 if session[1] >= 0 else 0,
        "responses": [{"topicId": TOPIC_ID, "partitions": told}] if told else [],
    }
    return line(second, "FETCH", request, response, **more)


METADATA = line(59, "METADATA", {}, {"topics": [{"name": "orders", "topicId": TOPIC_ID, "partitions": [{}, {}, {}]}]})


def imported(
    directory: Path, lines: Iterable[str], options: ImportOptions | None = None
) -> tuple[list[dict[str, Any]], Found, Trace]:
    directory.mkdir(exist_ok=True)
    file = directory / "request.log"
    file.write_text("".join(f"{text}\n" for text in lines))
    found = import_request_log([file], directory / "trace", options or ImportOptions())
    trace = Trace(directory / "trace")
    return [row for batch in trace.batches() for row in batch.to_pylist()], found, trace


def only(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


def test_batches_get_the_records_up_to_the_next_base_offset_and_the_last_one_those_up_to_the_end(
    tmp_path: Path,
) -> None:
    rows, found, trace = imported(
        tmp_path,
        [
            produced(1, 0, 1061),
            produced(1.5, 10, 561, total_ms=100, port=5002),
            produced(2, 15, 1561),
            fetched(3, {0: 30}, {}, request={"replicaId": 2}),
            fetched(3.5, {0: 29}, {0: 61}),
            METADATA,
        ],
    )
    produce = [row for row in rows if row["op"] == "produce"]
    assert only(produce, "time_ns", "records", "bytes", "acks", "transactional", "compression") == [
        (0, 10, 1061, -1, False, "none"),
        (410_000_000, 5, 561, -1, False, "none"),
        (1_000_000_000, 15, 1561, -1, False, "none"),
    ]
    assert found.skipped["FETCH of a follower"] == 1
    assert found.records_estimated == 1, "the fetch, which has no successor"
    assert (trace.info.topics, trace.info.start) == ({"orders": 3}, 1_769_860_800_990_000_000)


def test_gaps_between_base_offsets(tmp_path: Path) -> None:
    """Each partition is a case. Its batches are (base offset, bytes), -1 for acks 0, or the marker of a transaction."""
    counts = [number % 7 + 1 for number in range(300)]
    offsets = [sum(counts[:number]) for number in range(300)]
    shuffled = sorted(range(300), key=lambda number: number + number * 37 % 20)
    small = 100
    cases: list[tuple[list[tuple[int, int] | str], int, list[int | None]]] = [
        ([(5, small), (0, small), (7, small)], 9, [2, 5, 2]),
        ([(0, small), (0, small), (4, small)], 5, [4, 4, 1]),
        ([(-1, small), (0, 161), (-1, 361), (40, 161)], 41, [None, 10, 30, 1]),
        ([(0, small), "marker", (6, small)], 7, [5, 1]),
        ([(offsets[number], small) for number in shuffled], sum(counts), [counts[number] for number in shuffled]),
        (
            [(2 * number, small) for number in range(100)] + [(3 * number, small) for number in range(100)],
            300,
            [*[2] * 99, None, *[3] * 100],
        ),
    ]
    lines = [METADATA.replace("12:00:59", "12:00:00")]
    for partition, (batches, end, _) in enumerate(cases):
        for number, batch in enumerate(batches):
            second = 1 + number / 50
            if isinstance(batch, str):
                topics = [{"name": "orders", "partitionIndexes": [partition]}]
                lines.append(line(second, "WRITE_TXN_MARKERS", {"markers": [{"topics": topics}]}, {}))
            else:
                lines.append(produced(second, *batch, acks=0 if batch[0] < 0 else -1, partition=partition))
        lines.append(fetched(50, {partition: end}, {}, request={"replicaId": 1}))
    rows, found, _ = imported(tmp_path, sorted(lines))
    for partition, (_, _, expected) in enumerate(cases):
        records = [row["records"] for row in rows if row["partition"] == partition]
        known = [one if of is not None else None for one, of in zip(records, expected, strict=True)]
        assert known == expected, partition
    assert found.records_estimated == 2


def test_a_fetch_session_names_only_partitions_that_changed(tmp_path: Path) -> None:
    rows, _, _ = imported(
        tmp_path,
        [
            METADATA.replace("12:00:59", "12:00:00"),
            fetched(1, {0: 0, 1: 5}, {0: 800}, session=(0, 0)),
            fetched(2, {0: 20}, {}, session=(77, 1)),
            fetched(3, {}, {1: 400}, session=(77, 2)),
            fetched(4, {1: 9}, {}, session=(77, 3)),
            fetched(5, {}, {}, session=(77, -1)),
        ],
    )
    assert only(rows, "topic", "partition", "records", "bytes", "offset", "behind") == [
        ("orders", 0, 20, 800, 0, 30),
        ("orders", 0, 0, 0, 20, None),
        ("orders", 1, 4, 400, 5, 25),
        ("orders", 0, 0, 0, 20, None),
    ]
    assert only(rows, "min_bytes", "max_wait_ms", "max_bytes", "acks", "request") == [
        (1, 500, 1000, None, request) for request in range(4)
    ]


@pytest.mark.parametrize("heartbeat", ["HEARTBEAT", "CONSUMER_GROUP_HEARTBEAT"])
def test_a_client_has_a_group_if_it_is_the_only_one_and_hosts_are_told_apart(tmp_path: Path, heartbeat: str) -> None:
    other = {"connection": f"{BROKER}-host-b:6000-4"}
    rows, _, _ = imported(
        tmp_path,
        [
            fetched(1, {0: 0}, {}, client="a"),
            line(2, heartbeat, {"groupId": "readers"}, {}, client="a", port=7),
            fetched(3, {0: 0}, {}, client="a", **other),
            line(4, "OFFSET_COMMIT", {"groupId": "x"}, {}, client="a", **other),
            line(5, "JOIN_GROUP", {"groupId": "y"}, {}, client="a", **other),
        ],
        ImportOptions(topic_names={TOPIC_ID: "t"}),
    )
    assert only(rows, "client", "group", "topic") == [("a", "readers", "t"), ("a#2", None, "t")]


def test_transactions_have_their_offsets_and_their_ends(tmp_path: Path) -> None:
    """A crashed producer's transaction is aborted by the InitProducerId of the next one. What was refused is left out."""

    def batch(second: float, offset: int, name: str = "id", **more: Any) -> str:
        return produced(second, offset, 161, **more).replace('"transactionalId":null', f'"transactionalId":"{name}"')

    def end(second: float, is_commit: bool, error: int = 0) -> str:
        return line(second, "END_TXN", {"transactionalId": "id", "committed": is_commit}, {"errorCode": error})

    def init(second: float, name: str | None, **more: Any) -> str:
        return line(second, "INIT_PRODUCER_ID", {"transactionalId": name}, {"errorCode": 0}, **more)

    partitions = [{"partitionIndex": at, "errorCode": at} for at in range(2)]
    offsets = line(
        *(3, "TXN_OFFSET_COMMIT", {"transactionalId": "id", "groupId": "g"}),
        {"topics": [{"name": "orders", "partitions": partitions}]},
    )
    lines = [
        *(init(1, "id"), batch(2, 0), offsets, end(4, True, error=51), end(5, True), end(6, True)),
        *(init(7, None), batch(8, 2), init(9, "id", client="next"), batch(10, 4, "other")),
        fetched(11, {0: 0}, {0: 500}, request={"isolationLevel": 1}),
        METADATA,
    ]
    rows, found, trace = imported(tmp_path, lines)
    assert only(rows, "op", "client", "transactional_id", "group", "topic", "read_committed") == [
        ("produce", "app", "id", None, "orders", None),
        ("offsets", "app", "id", "g", "orders", None),
        ("commit", "app", "id", None, "", None),
        ("produce", "app", "id", None, "orders", None),
        ("abort", "app", "id", None, "", None),
        ("produce", "app", "other", None, "orders", None),
        ("fetch", "app", None, None, "orders", True),
    ]
    assert {row["transactional"] for row in rows if row["op"] == "produce"} == {True}
    assert (found.ends, found.skipped["END_TXN"], found.skipped["INIT_PRODUCER_ID"]) == (2, 1, 1)
    assert trace.info.topics == {"orders": 3}
    assert check(tmp_path / "trace").count == 0
    _, _, chosen = imported(tmp_path / "chosen", lines, ImportOptions(hash_clients=True, topics=frozenset(["orders"])))
    hashed = [row for each in chosen.batches() for row in each.to_pylist()]
    assert [row["op"] for row in hashed] == [row["op"] for row in rows]
    assert not {"id", "other", "g"} & {row[name] for row in hashed for name in ("transactional_id", "group")}


def test_hashed_names_are_distinct_and_not_the_names(tmp_path: Path) -> None:
    lines = [produced(1, 0, 100), produced(2, 1, 100, client="secret"), produced(3, 2, 100)]
    rows, _, _ = imported(tmp_path, lines, ImportOptions(hash_clients=True))
    names = [row["client"] for row in rows]
    assert names[0] == names[2] != names[1]
    assert not {"app", "secret"} & set(names)


def test_what_no_client_wanted_or_got_is_counted_and_left_out(tmp_path: Path) -> None:
    refused = produced(1, -1, 100).replace('"errorCode":0', '"errorCode":6')
    rows, found, _ = imported(
        tmp_path,
        [
            "a line of another logger",
            refused,
            line(1, "API_VERSIONS", {}, {}),
            line(1, "FETCH", "", {}),
            produced(2, 0, 100),
        ],
    )
    assert len(rows) == 1
    assert +found.skipped == {"PRODUCE batch that was refused": 1, "API_VERSIONS": 1, "FETCH without content": 1}


def test_several_files_packed_and_in_any_order_are_one_log(tmp_path: Path) -> None:
    """The older file is packed and given last. Its base offset comes first."""
    (tmp_path / "new.log").write_text(produced(3, 7, 100) + "\n" + produced(4, 9, 100) + "\n")
    (tmp_path / "old.log.gz").write_bytes(gzip.compress((produced(1, 0, 100) + "\n").encode()))
    import_request_log([tmp_path / "new.log", tmp_path / "old.log.gz"], tmp_path / "trace", ImportOptions())
    rows = [row for batch in Trace(tmp_path / "trace").batches() for row in batch.to_pylist()]
    assert [row["records"] for row in rows][:2] == [7, 2]


def test_the_times_are_of_the_zone_that_is_given(tmp_path: Path) -> None:
    _, _, trace = imported(tmp_path, [produced(1, 0, 100)], ImportOptions(time_zone=ZoneInfo("Asia/Tokyo")))
    assert trace.info.start == 1_769_860_800_990_000_000 - 9 * 3600 * 10**9


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (produced(2, 0, 1)[:200], "the line is cut off: it has no requestApiKeyName or no totalTimeMs"),
        (produced(2, 0, 1)[200:], "the line has no 'Completed request:', only the end of a request"),
        (produced(2, 0, 1).replace('"listener":"PLAINTEXT"}', ""), "the line is cut off or damaged: "),
        (produced(2, 0, 1).replace("2026-01-31 12:00:02,000", ""), "the line has no time"),
        (produced(2, 0, 1).replace('"index":0', '"index":"x"'), "its content is not as Kafka writes it: "),
        (
            produced(2, 0, 1).replace("{", "RequestHeader(apiKey=PRODUCE) -- {", 1),
            "the line is of a Kafka before 2.8",
        ),
    ],
)
def test_a_line_that_is_cut_off_is_bad(tmp_path: Path, bad: str, reason: str) -> None:
    (tmp_path / "log").write_text(f"{produced(1, 0, 100)}\n{bad}\n{bad}\n")
    split = {"file": 0, "path": str(tmp_path / "log"), "start": 0, "stop": None}
    (batch,) = _read_split(ImportOptions(), [pyarrow.RecordBatch.from_pylist([split])])
    (row,) = [row for row in batch.to_pylist() if row["kind"] == "bad"]
    assert (row["number"], row["place"]) == (2, len(produced(1, 0, 100)) + 1)
    assert row["text"].startswith(reason)


def test_a_bad_line_is_an_error_with_its_number_or_is_counted(tmp_path: Path) -> None:
    lines = [produced(1, 0, 100), produced(2, 0, 1)[:200]]
    with pytest.raises(TraceError, match=r"request.log, line 2: the line is cut off: .* --skip-bad-lines leaves such"):
        imported(tmp_path, lines)
    assert [path.name for path in tmp_path.iterdir()] == ["request.log"]
    rows, found, _ = imported(tmp_path, lines, ImportOptions(skip_bad_lines=True))
    assert (len(rows), found.bad_lines) == (1, 1)


def test_the_command_says_what_it_found_and_what_was_wrong(tmp_path: Path) -> None:
    log = tmp_path / "request.log"
    log.write_text(produced(1, 0, 100) + "\n" + produced(2, 3, 100) + "\n")
    old = tmp_path / "old.log"
    old.write_text("[2020-01-31 12:00:01,500] DEBUG Completed request:RequestHeader(apiKey=PRODUCE, apiVersion=8)\n")
    result = CliRunner().invoke(command, [str(log), "--out", str(tmp_path / "trace")])
    assert result.exit_code == 0, result.output
    assert "operations: 2 produce, 0 fetch, in 2 rows" in result.output
    assert "estimated: the number of records of 1 row" in result.output
    for arguments, code, reason in (
        ([str(log), "--out", str(tmp_path / "trace")], 1, "exists already"),
        ([str(log), "--out", str(tmp_path / "other"), "--topic", "b"], 1, "the log has no produce or fetch of b"),
        ([__file__, "--out", str(tmp_path / "other")], 1, "has no line of Kafka's request log"),
        ([str(old), "--out", str(tmp_path / "other")], 1, "the line is of a Kafka before 2.8"),
        ([str(log), "--out", "x", "--time-zone", "Mars/Base"], 2, "is not a time zone"),
    ):
        result = CliRunner().invoke(command, arguments)
        assert (result.exit_code, reason in result.output) == (code, True), result.output
