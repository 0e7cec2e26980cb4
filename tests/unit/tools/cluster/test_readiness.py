"""Whether brokers serve, asked without Kafka's schemas: the bytes against those of kio."""

import socket
import threading
from collections.abc import Iterator

import pytest

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import parse_request_header
from tools.cluster.readiness import METADATA_VERSION, broker_view, not_ready

TIMEOUT_S = 5.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def answer_once(listener: socket.socket, answer: bytes) -> threading.Thread:
    """Reads a request, which must be one for no topic, and sends these bytes."""

    def run() -> None:
        with listener.accept()[0] as connection:
            request = connection.recv(1024)[4:]
            header = parse_request_header(request)
            asked = messages.decode_request(header.api_key, header.api_version, request, header.body_offset)
            connection.sendall(answer if asked.topics == () else b"")

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def metadata(brokers: int, controller_id: int) -> bytes:
    rows = [{"node_id": node, "host": "localhost", "port": 9092, "rack": None} for node in range(1, brokers + 1)]
    body = {"brokers": rows, "controller_id": controller_id, "topics": []}
    frame = bytes(4) + messages.encode_response(ApiKey.METADATA, METADATA_VERSION, body)
    return len(frame).to_bytes(4, "big") + frame


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (metadata(3, 2), None),
        (metadata(3, -1), "knows no controller"),
        (metadata(1, 1), "does not know broker 2, 3"),
        (metadata(3, 2)[:-10], "does not answer"),
        (b"\xff\xff\xff\xff", "does not answer"),
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", "does not answer"),
        (b"", "does not answer"),
    ],
)
def test_a_broker_is_ready_when_it_knows_a_controller_and_all_brokers(
    listener: socket.socket, answer: bytes, reason: str | None
) -> None:
    answering = answer_once(listener, answer)
    found = not_ready({1: listener.getsockname()}, (1, 2, 3), TIMEOUT_S)
    answering.join()
    assert found.get(1) == reason


def test_a_port_without_a_listener_does_not_answer(listener: socket.socket) -> None:
    address = listener.getsockname()
    listener.close()
    assert broker_view(address, TIMEOUT_S) is None
