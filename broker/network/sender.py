"""What sends the parts of an answer past the transport: `FileSender`, or the simulated one that a simulated transport brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from protocol.kafka.framing import Part


class Sender(Protocol):
    """Of one connection."""

    def end(self) -> None:
        """The connection ends."""

    def send(self, parts: Sequence[Part]) -> int:
        """Sends as many bytes as the socket takes now, and returns their number. Raises nothing."""
