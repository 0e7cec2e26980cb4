"""The floor of the machine: the load generator against a C server that does the least that a broker has to do (`floor.c`).

It reads the same frames, appends them to a file in the page cache, and answers. It does not look into them, and replicates nothing.
"""

from __future__ import annotations

import contextlib
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from protocol.kafka import fetch_codec, produce_codec
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.fetch_codec import FetchPartitionData
from protocol.kafka.framing import response_header
from protocol.kafka.produce_codec import ProducePartitionResult
from tools.bench.closed_loop import c_generator
from tools.bench.closed_loop.measurement import Measurement
from tools.bench.closed_loop.request_plan import (
    Frame,
    LoadFailed,
    Plan,
    PlannedConnection,
    batch,
    fetch_frame,
    produce_frame,
)
from tools.bench.closed_loop.topic_load import BenchError, Load
from tools.bench.compare.results import Floor
from tools.bench.compare.rows import PerfTool, Row
from tools.cluster import ownership
from tools.cluster.ports import LOCAL_HOST

SOURCE = Path(__file__).with_name("floor.c")
TOPIC = "floor"


def measure_floor(directory: Path, row: Row, seconds: float, warm_up_s: float) -> Floor | None:
    """The floor of a row of the raw client, None for another client. `directory` takes its files.

    Raises BenchError, for example without a C compiler.
    """
    load = row.load
    if isinstance(load, PerfTool) or load.client != "raw":
        return None
    try:
        generator, server = c_generator.compiled_program(), c_generator.compiled_program(SOURCE)
    except c_generator.NotCompiled as error:
        raise BenchError(f"the floor needs C programs: {error}") from None
    answer, batches, frame = directory / "answer", directory / "batches", _frame(load)
    answer.write_bytes(_answer(load, batches))

    def rate(*files: str) -> float:
        with _running(server, str(answer), *files) as port:
            connection = PlannedConnection(
                "fetch" if load.kind == "consume" else "produce", (LOCAL_HOST, port), load.in_flight
            )
            plan = Plan(warm_up_s, seconds, [frame], [connection] * load.connections)
            try:
                found = c_generator.run(plan, generator)
            except LoadFailed as error:
                raise BenchError(f"the floor of {row.title}: {error}") from None
        return rate_of(row, found)

    if load.kind == "consume":
        return Floor(rate("-", str(batches), str(batches.stat().st_size)))
    log = directory / "floor.log"
    try:
        return Floor(rate(), rate(str(log)))
    finally:
        log.unlink(missing_ok=True)


def rate_of(row: Row, found: Measurement) -> float:
    """In the row's unit."""
    amount = {"requests/s": found.requests, "records/s": found.records, "MB/s": found.bytes / 1e6}[row.unit]
    return amount / found.seconds


def _frame(load: Load) -> Frame:
    if load.kind == "consume":
        return fetch_frame(TOPIC, 0, load.fetch_bytes, load.version)
    records = batch(load.record_bytes, load.records_per_batch, int(time.time() * 1000))
    data = produce_frame([(TOPIC, 0)], load.acks, records, load.version)
    size = load.records_per_batch * load.record_bytes
    return Frame(data, load.records_per_batch, size, version=load.version)


def _answer(load: Load, batches: Path) -> bytes:
    """The answer up to its batches, with its length. The file `batches` gets the rest: a batch, and what follows it."""
    rest = b""
    if load.kind == "produce":
        header = response_header(ApiKey.PRODUCE, load.version, 0)
        body = produce_codec.encode_response(load.version, [(TOPIC, [ProducePartitionResult(0, 0, 0)])])
    else:
        header = response_header(ApiKey.FETCH, load.version, 0)
        records = batch(load.record_bytes, 1, int(time.time() * 1000))
        data = FetchPartitionData(0, 0, 1, 1, 0, [records])
        parts = fetch_codec.encode_response(load.version, 0, 0, 0, [(TOPIC, [data])])
        body, rest = bytes(parts[0]), b"".join(parts[1:])
        batches.write_bytes(rest)
    size = len(header) + len(body) + len(rest)
    return struct.pack(">i", size) + header + body


@contextlib.contextmanager
def _running(server: Path, *arguments: str) -> Iterator[int]:
    """The server; yields its port. It is killed at the end."""
    command: Sequence[str] = [str(server), *arguments]
    process = ownership.start(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line.isdigit():
            raise BenchError("the C server of the floor did not start")
        yield int(line)
    finally:
        process.kill()
        process.communicate()
