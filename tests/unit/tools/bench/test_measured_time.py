"""How long a measurement lasts: as long as it shall, and longer if nothing is answered meanwhile."""

from __future__ import annotations

import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import encode_response
from tools.bench.closed_loop import librdkafka_load
from tools.bench.closed_loop.generator import generate
from tools.bench.closed_loop.librdkafka_load import Window
from tools.bench.closed_loop.measurement import BenchError, Measurement, answered, silent
from tools.bench.closed_loop.request_plan import Frame, Plan, PlannedConnection, batch, produce_frame

MEASURED_S = 0.05
LATE_S = 0.2
PARTITION_ANSWER = {"index": 0, "error_code": 0, "base_offset": 0, "record_errors": [], "error_message": None}
ANSWER = {"responses": [{"name": "t", "partition_responses": [PARTITION_ANSWER]}], "throttle_time": 0}


@pytest.fixture
def slow_broker() -> Iterator[tuple[str, int]]:
    """Answers the first request of its only connection after LATE_S, and no other."""
    ended = threading.Event()

    def serve(listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # the test has ended without a connection
            return
        with connection, connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            correlation_id = stream.read(size)[4:8]
            time.sleep(LATE_S)
            answer = correlation_id + b"\0" + encode_response(ApiKey.PRODUCE, 9, ANSWER)
            connection.sendall(struct.pack(">i", len(answer)) + answer)
            ended.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname()
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.skipif(shutil.which("cc") is None, reason="the load generator needs a C compiler")
def test_the_first_answer_is_waited_for(slow_broker: tuple[str, int]) -> None:
    frame = Frame(produce_frame([("t", 0)], 1, batch(100, 1, 0)), 1, 100)
    plan = Plan(0.0, MEASURED_S, [frame], [PlannedConnection("produce", slow_broker, 1)])
    found = generate(plan)
    assert (found.requests, found.bytes) == (1, 100)
    assert found.seconds > MEASURED_S


def test_the_first_answer_of_librdkafka_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window(0.0, 0.0, silent)
    assert window.is_open()
    window.add(0.1, 1, 100)
    assert not window.is_open()
    assert window.result().records == 1
    monkeypatch.setattr(librdkafka_load, "FIRST_ANSWER_S", 0.0)
    assert not Window(0.0, 0.0, silent).is_open()


def test_no_answer_is_no_measurement() -> None:
    with pytest.raises(BenchError, match=r"nothing was answered within 31\.5 s"):
        answered(Measurement(0, 0, 0, 31.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
