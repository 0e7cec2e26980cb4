"""A connection whose answers can be changed, for a broker with `broker.fault.injection=true`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.network.connection import ClientConnection
from broker.network.processor import Processor
from protocol.errors import KafkaError
from protocol.kafka.framing import Part, in_memory
from protocol.types import Buffer

Changed = Callable[[bytes], None]
"""Called with the whole answer, in the place of sending it."""


class ConnectionUnderFaults(ClientConnection):
    """`changed`: number of a request -> who gets its answer. An answer that nobody gets is sent as always. `seen_up_to`: the number of the
    last request that was looked at."""

    def __init__(self, processor: Processor, listener: str) -> None:
        super().__init__(processor, listener)
        self.changed: dict[int, Changed] = {}
        self.seen_up_to = -1
        self._has_said_all = False

    def says_no_more(self) -> None:
        """Called for an answer whose turn has come: it is the last one that is sent."""
        self._has_said_all = True
        self._order.drop_held()

    def answer(self, number: int, parts: Sequence[Buffer]) -> None:
        if self._has_said_all:
            return
        changed = self.changed.pop(number, None) if self.changed else None
        if changed is None or not parts:
            super().answer(number, parts)
        elif self.is_open:
            changed(b"".join(parts))

    def answer_records(self, number: int, parts: Sequence[Part]) -> None:
        if self._has_said_all:
            return
        if number not in self.changed:
            super().answer_records(number, parts)
            return
        try:
            self.answer(number, in_memory(parts))
        except KafkaError as error:
            self.close(f"the records of an answer could not be read: {error}")

    def answer_in_turn(self, number: int, make: Callable[[], Sequence[Buffer]]) -> None:
        if self._has_said_all:
            return
        if number in self.changed:
            self.answer(number, make())
        else:
            super().answer_in_turn(number, make)
