"""Sends the parts of an answer past the transport, records right from their file (`StoredBytes`), with `sendfile`.

Reading 1 MB of records into the process and writing it to the socket copies it twice, and takes fresh memory for it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence

from broker.network.sender import Sender
from protocol.errors import KafkaError
from protocol.kafka.framing import Part, StoredBytes


class FileSender:
    """Of one connection. The transport keeps the socket: it must have nothing to write, and not be closing, when `send` is called."""

    __slots__ = ("_socket",)

    def __init__(self, descriptor: int) -> None:
        # Not a duplicate, so that a closed connection is closed for its client. `end` leaves the descriptor to the transport.
        self._socket = socket.socket(fileno=descriptor)

    @classmethod
    def of(cls, transport: asyncio.BaseTransport) -> Sender | None:
        """None: the connection is encrypted, or the kernel does not know it. A simulated transport brings its own."""
        simulated: Sender | None = transport.get_extra_info("file_sender")
        if simulated is not None:
            return simulated
        if transport.get_extra_info("sslcontext") is not None:
            return None
        descriptor = transport.get_extra_info("socket").fileno()
        return cls(descriptor) if descriptor >= 0 else None

    def end(self) -> None:
        """The transport closes the socket."""
        self._socket.detach()

    def send(self, parts: Sequence[Part]) -> int:
        """Sends as many bytes as the socket takes now, and returns their number.

        An error ends it. Whoever reads or writes the rest meets the same error, of the disk or of the connection.
        """
        target = self._socket
        descriptor = target.fileno()
        total = 0
        last = len(parts) - 1
        try:
            for number, part in enumerate(parts):
                size = len(part)
                if isinstance(part, StoredBytes):
                    sent = os.sendfile(descriptor, part.descriptor(), part.position, size)
                else:
                    sent = target.send(part, 0 if number == last else socket.MSG_MORE)
                total += sent
                if sent < size:
                    break
        except (OSError, KafkaError):
            pass
        return total
