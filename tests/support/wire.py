"""A blocking Kafka connection, for tests that need a certain broker, or requests that no client library sends."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

CLIENT_ID = "test-wire"


class Wire:
    """One connection to one broker; requests go out one at a time unless `send` and `receive` are used apart."""

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        timeout_s: float = 20.0,
        client_id: str | None = CLIENT_ID,
        source: str | None = None,
    ) -> None:
        """`source`: the address from which it connects."""
        self.client_id = client_id
        self.socket = socket.create_connection(
            (host, port), timeout=timeout_s, source_address=None if source is None else (source, 0)
        )
        self.correlation_id = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> int:
        """Sends one request; returns its correlation id."""
        self.correlation_id += 1
        payload = messages.encode_request(api_key, version, self.correlation_id, self.client_id, body)
        self.socket.sendall(struct.pack(">i", len(payload)) + payload)
        return self.correlation_id

    def send_raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_frame(self) -> bytes:
        """The next response after its length. Raises ConnectionError when the broker closed the connection."""
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def call(self, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """Sends a request and returns the decoded response."""
        expected = self.send(api_key, version, body)
        correlation_id, response = messages.decode_response(api_key, version, self.receive_frame())
        assert correlation_id == expected
        return response

    def is_closed_by_peer(self) -> bool:
        """True when the broker closed the connection without sending anything more."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("the broker closed the connection")
            data += chunk
        return bytes(data)
