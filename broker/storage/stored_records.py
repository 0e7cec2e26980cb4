"""Records of an answer that stay in their log file: the kernel sends them from there (`StoredBytes`)."""

from __future__ import annotations

import asyncio

from broker.storage.segment import Segment
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.framing import StoredBytes
from protocol.types import Buffer


class StoredRecords(StoredBytes):
    """Bytes of a segment's log file.

    The file stays open in this turn of the loop, in which the answer is sent: reading another partition may close files, if no
    descriptor is left or if the directory fails, and a file that is opened next gets the number.
    """

    __slots__ = ("_segment",)

    def __init__(self, segment: Segment, position: int, size: int) -> None:
        super().__init__(position, size)
        self._segment = segment
        segment.pin()
        asyncio.get_running_loop().call_soon(segment.unpin)

    def descriptor(self) -> int:
        return self._segment.descriptor()

    def read(self, start: int = 0) -> Buffer:
        data = self._segment.read(self.position + start, self.size - start, may_block=True)
        if len(data) < self.size - start:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"{self._segment.path} ends before byte {self.position + self.size}"
            )
        return data
