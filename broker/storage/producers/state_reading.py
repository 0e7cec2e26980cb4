"""The producers' state below an offset, read by a thread before a cut there (NET-4).

After a start no copies of the state are in memory. A cut would decode a snapshot and read a segment of small batches on the loop: 64 MB
take a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from broker.storage.producers import producer_snapshots
from broker.storage.producers.producer_state import ProducerState
from broker.storage.segment import Segment
from protocol.kafka.control_records import marker_in
from protocol.kafka.record_batch import CONTROL_BIT

log = logging.getLogger(__name__)

BATCHES_READ_AT_ONCE = 500
"""In a slice: about two milliseconds of work for a thread."""

Start = ProducerState | Callable[[], bytes]
"""A frozen state, or what reads the file of a snapshot."""


class StateReading:
    """Has a state of its own, and changes nothing of the log's. `begin` and `read` are for a thread, and raise OSError.

    `starts`: (offset, start), newest first. The first one that can be read is used; without one, the state starts empty at `first_offset`.
    """

    def __init__(self, end_offset: int, first_offset: int, starts: Sequence[tuple[int, Start]]) -> None:
        self.end_offset = end_offset
        self.state = ProducerState(first_offset)
        self.is_complete = False
        self._starts = starts
        self._segment: Segment | None = None
        self._position = 0

    def begin(self) -> None:
        for offset, start in self._starts:
            if isinstance(start, ProducerState):
                self.state = start.freeze()
                return
            try:
                self.state = producer_snapshots.decode(start(), offset)
            except ValueError as error:
                log.warning("the snapshot at offset %d is not used: %s", offset, error)
            else:
                return

    def next_segment(self, segments: Sequence[Segment]) -> Segment | None:
        """The segment to read from next. None: `is_complete`, or one that is needed was removed."""
        if self._segment is not None or self.is_complete:
            return self._segment if self._segment in segments else None
        if segments[0].base_offset > self.state.end_offset:
            return None
        for segment in segments:
            if max(segment.base_offset, self.state.end_offset) >= self.end_offset:
                break
            if segment.next_offset > self.state.end_offset:
                segment.load_indexes()
                entry = segment.index.entry_before(self.state.end_offset)
                self._segment, self._position = segment, entry[1] if entry else 0
                return segment
        self.is_complete = True
        return None

    def read(self, segment: Segment) -> None:
        """Reads a slice of the segment's batches."""
        state = self.state
        for count, (at, header) in enumerate(segment.headers(self._position), 1):
            if count == 1 and self._position and header.base_offset > state.end_offset:
                self._position = 0  # the index is wrong, or compaction left a hole there
                return
            self._position = at + header.size_in_bytes
            if header.next_offset > self.end_offset:
                self.is_complete = True
                break
            if header.base_offset >= state.end_offset:
                marker = None
                if header.attributes & CONTROL_BIT:
                    marker = marker_in(segment.read(at, header.size_in_bytes, may_block=True))
                state.append(header, header.base_offset, marker)
            if count == BATCHES_READ_AT_ONCE:
                return
        else:
            state.skip_to(min(segment.next_offset, self.end_offset))
        self._segment = None
