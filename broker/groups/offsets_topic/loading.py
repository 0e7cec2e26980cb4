"""Reads the groups and offsets of a partition of `__consumer_offsets`: step 1 of `broker.coordination.loading` (BUG-25).

Member sessions restart when the groups are served, so a coordinator move expels nobody.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

from broker.coordination.loading import Replicas, TopicReader
from broker.groups.group.offsets import GroupOffsets
from broker.groups.offsets_topic.image import OffsetsImage, StoredMetadata
from broker.process.clock import Clock
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

StoredGroup = tuple[str, StoredMetadata, GroupOffsets]
"""Group id, the stored group, its offsets."""


class OffsetsReader:
    """Reads whole partitions. After each pause `is_current` says whether the load is still wanted."""

    def __init__(self, replicas: Replicas, clock: Clock, buffer_bytes: int = 5 * 1024 * 1024) -> None:
        self._reader = TopicReader(replicas, clock, buffer_bytes)
        self._clock = clock

    async def load(self, partition: int, is_current: Callable[[], bool], sink: Callable[[StoredGroup], None]) -> bool:
        """Reads the partition, then passes each group to `sink`. False: the load was given up, because `is_current` is false or
        this broker does not lead the partition. The groups in the sink must then be discarded.

        Raises KafkaError if the log cannot be read: with a part of the log, the coordinator would answer old offsets.
        """
        began = self._clock.monotonic()
        tp = TopicPartition(OFFSETS_TOPIC, partition)
        image = OffsetsImage()
        time_slice = self._reader.new_slice()
        if not await self._reader.read(tp, image, time_slice, is_current):
            return False
        count = offsets_count = 0
        for group in image.groups():
            for _ in itertools.chain(group[2].counting(), (None,)):
                if time_slice.is_over():
                    await time_slice.pause()
                    if not is_current():
                        return False
            sink(group)
            count += 1
            offsets_count += len(group[2])
        _log_skipped(tp, image)
        seconds = self._clock.monotonic() - began
        log.info("%s: %d groups and %d offsets loaded in %.3f s", tp, count, offsets_count, seconds)
        return True


def _log_skipped(tp: TopicPartition, image: OffsetsImage) -> None:
    for what, count in image.skipped.items():
        reason = image.first_errors.get(what, "written by another version of the broker")
        log.warning("%s: skipped %d %s, which stay in the log: %s", tp, count, what, reason)
    if image.open_transactions:
        log.info("%s: the offsets of %d transactions are pending", tp, image.open_transactions)
