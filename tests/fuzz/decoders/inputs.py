"""Files and lines that commands are given, and files that they find: reassignments, records, times, traces, a broker's disk."""

from __future__ import annotations

import atexit
import io
import json
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker.storage import checkpoints
from broker.storage.directories import topic_ids
from protocol.jaas import BadJaas, read_jaas
from protocol.kafka.record_batch import build_batch
from protocol.types import TopicPartition
from tests.fuzz.decoder import Decoder
from tests.fuzz.sealing import packed, parts_of, sealed_batch, sealed_producer_snapshot
from tools.admin.bootstrap import client_listeners, parse_properties
from tools.admin.config_values import ChangeError, merge_changes, parse_additions
from tools.admin.reassign_plan import (
    PlanError,
    parse_directories,
    parse_partitions,
    parse_plan,
    parse_topics,
    plan_text,
)
from tools.clients.line_source import lines_of
from tools.clients.record_lines import BadLine, LineRules, json_parser, line_parser
from tools.cluster.local_cluster import ClusterError
from tools.cluster.run_directory import parse_address
from tools.failures import AdminError
from tools.groups.reset_plan import parse_reset_file
from tools.inspect.log_dump import directory_content, directory_lines
from tools.points_in_time import NoTime, parse_datetime_ms, parse_duration_ms
from tools.properties_file import BadProperties, read_properties

TP = TopicPartition("orders", 0)
T_ID = "AAAAAAAAAAAAAAAAAAAABw"
DEEP = (
    b"[" * 1000,
    b'{"partitions":' * 1000,
    b'{"version":1,"partitions":[{"topic":"t","partition":' + b"9" * 5000 + b"}]}",
)


def decoders() -> list[Decoder]:
    found = [
        Decoder("reassignment-file", _reassignment, lambda: [*PLANS, *DEEP], (PlanError, UnicodeDecodeError)),
        Decoder("record-line", _line, _lines, (BadLine,)),
        Decoder("json-line", _json_line, lambda: [*JSON_LINES, *DEEP], (BadLine,)),
        Decoder("lines", _split_lines, lambda: [b"a\nb\n\nc", b"\n\n", b"x" * 300]),
        Decoder("offsets-file", _reset, lambda: RESETS, (AdminError, UnicodeDecodeError)),
        Decoder("time", _time, lambda: TIMES, (NoTime, UnicodeDecodeError), bytes_max=100),
        Decoder("config-argument", _change, lambda: CHANGES, (ChangeError, UnicodeDecodeError), bytes_max=200),
        Decoder(
            "client-properties", _client, lambda: CLIENTS, (ClusterError, BadProperties, BadJaas, UnicodeDecodeError)
        ),
        Decoder(
            "inspected-directory", _inspected, _inspections, (), cpu_ms=200, memory=8 << 20, lines=20_000, is_slow=True
        ),
    ]
    try:
        import tools.replay.traces.schema  # noqa: F401
    except ImportError:
        return found  # pyarrow is not there
    return [
        *found,
        Decoder("progress", _progress, lambda: [*PROGRESS, *DEEP], (ValueError,)),
        Decoder("trace", _trace, _traces, _trace_errors(), bytes_max=4096, cpu_ms=500, memory=64 << 20, is_slow=True),
    ]


# -- reassignments --------------------------------------------------------------------------------------------------------

PLANS = [
    plan_text({TP: (1, 2, 3), TopicPartition("t", 1): (2,)}).encode(),
    b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","/d"]}]}',
    b'{"topics":[{"topic":"orders"},{"topic":"t"}]}',
    b'{"partitions":[{"topic":"t","partition":0,"replicas":[1,1]}]}',
]


def _reassignment(data: bytes) -> object:
    text = data.decode()
    found = _first_taken(text)
    str(found).encode("utf-8", "surrogatepass")
    return found


def _first_taken(text: str) -> object:
    """The command decides which of three formats it expects."""
    refused: PlanError | None = None
    for parse in (parse_plan, parse_topics, parse_partitions):
        try:
            found: Any = parse(text, "f")
        except PlanError as error:
            refused = error
            continue
        if parse is parse_plan:
            assert parse_plan(plan_text(found), "f") == found
            parse_directories(text, "f")
        return found
    assert refused is not None
    assert len(str(refused)) < 20_000
    raise refused


# -- records --------------------------------------------------------------------------------------------------------------

RULES = (
    LineRules(),
    LineRules(key_separator=b"\t"),
    LineRules(key_separator=b":", with_headers=True, null_text=b"NULL"),
    LineRules(fixed_key=b"k", fixed_headers=(("h", b"v"),), null_text=b""),
)
LINE_PARSERS = [line_parser(rules) for rules in RULES]
JSON_PARSERS = [json_parser(rules) for rules in RULES]


def _line(data: bytes) -> object:
    found = LINE_PARSERS[(data[0] if data else 0) % len(RULES)](data[1:])
    assert found.value is None or isinstance(found.value, bytes)
    return found


def _lines() -> Iterator[bytes]:
    for number in range(len(RULES)):
        for line in (b"v", b"k\tv", b"a:1,b:2\tk:v", b"a:1\tNULL:NULL"):
            yield bytes((number,)) + line


JSON_LINES = [
    b'\0{"key":"k","value":"v","partition":1,"timestamp":5,"headers":{"a":"b"}}',
    b'\1{"key_base64":"aw==","value_base64":null,"headers":[{"key":"h","value_base64":"AA=="}],"topic":"t","offset":3}',
    b'\2{"value":"\\ud800"}',
    b"\0null",
]


def _json_line(data: bytes) -> object:
    found = JSON_PARSERS[(data[0] if data else 0) % len(RULES)](data[1:])
    assert all(type(name) is str and (value is None or type(value) is bytes) for name, value in found.headers)
    for name, _ in found.headers:
        name.encode()
    assert found.timestamp is None or 0 <= found.timestamp < 1 << 63
    assert found.partition is None or 0 <= found.partition < 1 << 31
    return found


def _split_lines(data: bytes) -> object:
    found = [line for line in lines_of(io.BytesIO(data), 0) if line is not None]
    wanted = data.split(b"\n")
    assert found == (wanted if wanted[-1] else wanted[:-1])
    return found


# -- what admins write ----------------------------------------------------------------------------------------------------

RESETS = [b"t,0,5\nt,1,6\n", b"g,t,0,5\n\nother,t,1,6\n", b'"t",0,5\n', b"t,0,\xd9\xa1\n", b"g,t,0," + b"9" * 30]


def _reset(data: bytes) -> object:
    found = parse_reset_file(data.decode(), "f", ["g", "h"] if data.startswith(b"g") else ["g"])
    assert all(0 <= offset < 1 << 63 for offsets in found.values() for offset in offsets.values())
    return found


TIMES = [
    b"P1DT2H30M5.5S",
    b"1d2h30m5.5s",
    b"2026-11-21T10:15:00.000",
    b"2026-11-21T10:15+01:00",
    b"9999-12-31T23:59:59Z",
    b"P" + b"9" * 60 + b"D",
]


def _time(data: bytes) -> object:
    text = data.decode()
    try:
        found = parse_duration_ms(text)
    except NoTime:
        found = parse_datetime_ms(text)
    assert 0 <= found < 1 << 63
    return found


CHANGES = [b"retention.ms=5,a=[b,c]", b"k=v\nk", b"a=[[b]]", b",,"]


def _change(data: bytes) -> object:
    head, _, removals = data.decode().partition("\n")
    return merge_changes(parse_additions([head]), [removals])


CLIENTS = [
    b"bootstrap.servers=h:1\nsecurity.protocol=ssl\nssl.endpoint.identification.algorithm=none\n",
    b"sasl.jaas.config=a.ScramLoginModule required \\\n username=\"\\u0041\" password='b';\nssl.ca.location:x\n",
    b"listeners=PLAINTEXT://:9092,CONTROLLER://h:1\nadvertised.listeners=A://[::1]:5\nzookeeper.connect=h\n",
]


def _client(data: bytes) -> object:
    properties = parse_properties(data.decode())
    jaas = {key: value for key, value, _ in read_properties(data.decode())}.get("sasl.jaas.config")
    if jaas is not None:
        read_jaas(jaas)
    for endpoint in client_listeners(properties).values():
        _, port = parse_address(endpoint, Path("f"))
        assert type(port) is int
    return properties


PROGRESS = [
    b'{"task":1,"progress":{"sent":3,"acknowledged":4,"failed":0,"received":5,"unanswered":0,"late_ns":1,"bytes":9,"started_ns":7}}',
    b'{"ask":3}',
    b'{"task":1,"kind":"operations","bytes":3}',
    b'{"task":[],"progress":{}}',
    b'{"task":1,"progress":{"sent":"x"}}',
]


def _progress(data: bytes) -> object:
    """A line from a task, or from anyone on this machine."""
    from tools.replay.run.control import understood

    return understood(data)


# -- a broker's disk ------------------------------------------------------------------------------------------------------

_FILES = (
    "00000000000000000000.log",
    "00000000000000000000.index",
    "00000000000000000000.timeindex",
    "00000000000000000000.txnindex",
    "00000000000000000005.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "00000000000000000005.log",
)
_place: list[Path] = []


def _directory() -> Path:
    if not _place:
        _place.append(Path(tempfile.mkdtemp(prefix="ottla-fuzz-")))
        atexit.register(shutil.rmtree, _place[0], ignore_errors=True)
    return _place[0]


def _inspected(data: bytes) -> object:
    """The first byte of each part names its kind of file. Any content can be shown as JSON and as lines."""
    directory = _directory()
    for path in directory.iterdir():
        path.unlink()
    for part in parts_of(data)[:6]:
        kind, body = (part[0] if part else 0), part[1:]
        name = _FILES[kind % len(_FILES)]
        if kind & 0x40 and name.endswith(".log"):
            body = sealed_batch(body)
        elif kind & 0x40 and name.endswith(".snapshot"):
            body = sealed_producer_snapshot(body)
        with (directory / name).open("ab") as file:
            file.write(body)
    content = directory_content(directory, records=True, from_offset=0)
    json.dumps(content)
    text = "\n".join(directory_lines(content))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text), "control characters for a terminal"
    return text


def _inspections() -> Iterator[bytes]:
    rows = [(b"k", b"v", (("h", b"1"),), 1000), (None, b"\x1b[2J", (), 1001)]
    batches = [bytes((0x40,)) + build_batch(rows, compression=n) for n in range(5)]
    marker = bytes((0x40,)) + build_batch([(struct.pack(">hh", 0, 1), bytes(6), (), 5)], producer_id=7, attributes=0x30)
    index = b"\1" + struct.pack(">ii", 3, 105)
    times = b"\2" + struct.pack(">qi", 1001, 1)
    aborted = b"\3" + struct.pack(">hqqqq", 0, 7, 0, 5, 5)
    snapshot = b"\x44" + struct.pack(">qhiqiqiq", 7, 0, 5, 5, 1, 1000, -1, -1)
    epochs = b"\5" + checkpoints.encode_epochs([(0, 0), (2, 5)])
    metadata = b"\6" + topic_ids.encode(T_ID)
    yield packed([*batches[:2], index, times, epochs, metadata])
    yield packed([*batches[2:], marker, aborted, snapshot])
    yield packed([b"\0" + bytes(100), b"\7" + b"x" * 30, metadata[:20]])


# -- traces ---------------------------------------------------------------------------------------------------------------


def _trace_errors() -> tuple[type[BaseException], ...]:
    from tools.replay.traces.schema import TraceError

    return (TraceError,)


def _trace(data: bytes) -> object:
    from tools.replay.run.driver import facts_of
    from tools.replay.traces.schema import Trace

    path = _directory().with_suffix(".parquet")
    path.write_bytes(data)
    try:
        return facts_of(Trace(path))
    finally:
        path.unlink()


def _traces() -> Iterator[bytes]:
    import pyarrow
    import pyarrow.parquet

    from tools.replay.traces.schema import METADATA_KEY, SCHEMA, TraceInfo

    row: dict[str, Any] = {
        "time_ns": 5,
        "request": 1,
        "op": "produce",
        "client": "UA",
        "topic": "t",
        "partition": -1,
        "key_hash": 7,
        "records": 1,
        "bytes": 5,
        "compression": "none",
        "acks": -1,
        "transactional": False,
    }
    schema = SCHEMA.with_metadata({METADATA_KEY: TraceInfo(0, "a test", {"t": 3}).to_json()})
    for rows in ([row, {**row, "request": 2, "partition": 2}], [row, {**row, "records": 2}], []):
        table = pyarrow.Table.from_pylist(rows, schema=schema)
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(table, sink, compression="none", use_dictionary=False)
        yield sink.getvalue().to_pybytes()
