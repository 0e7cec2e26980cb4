"""Produce requests with one batch of moderate size each: those of a turn of the loop are appended together (REP-4).

This is what most producers send, so it is the path on which a request costs least. `gather` decodes a request and checks its batch.
`append_all` runs when the turn's requests are handled, or before the first request of another kind. It appends the batches of one
partition with one write, and looks once at the lease, the leadership, the in-sync replicas and the high watermark. Its answers are
filled into a template.

`gather` leaves every other request to `produce`: with several partitions, large, compressed or transactional batches, acks=0, a topic
whose settings look at each record, or anything invalid. If a gathered batch cannot be appended as it is, `append_all` hands it to
`Appends.append`, which finds out why, and answers accordingly. So the rules stand once.
"""

from __future__ import annotations

import logging
import struct
from typing import Final

from broker.apis.produce import body_size, respond
from broker.network.request_channel import NO_FRAME, Request
from broker.replication.appending.appends import ACKS_ALL, LEADER_ONLY
from broker.requests import rights, throttling
from broker.requests.context import ApiContext
from broker.requests.request_time import RequestTime
from broker.requests.steps import OWN_ERROR
from broker.settings.config import TopicConfig
from broker.storage.producers import produced_batches
from broker.storage.producers.produced_batches import PlainBatch
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka.framing import head_of
from protocol.kafka.produce_codec import (
    TOPIC_IDS_SINCE,
    AppendedAnswer,
    ProducePartitionResult,
    one_partition,
    partition_of,
    with_throttle_time,
)
from protocol.kafka.wire import TopicKey
from protocol.topic_ids import topic_id_uuid
from protocol.topic_names import INTERNAL_TOPICS
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

FRAME_MAX: Final = 256 * 1024
"""Bytes of a request. Larger ones cost mostly the copying of their bytes, so gathering them would gain nothing."""
GATHERED_BYTES_MAX: Final = 512 * 1024
GATHERED_MAX: Final = 256
"""Limits of the requests that are gathered before they are appended. One write takes at most 1,024 buffers, two for each batch."""
DESTINATIONS_MAX: Final = 20_000
"""Limit of partitions whose names are kept decoded."""


Gathered = tuple[Request, int, int, PlainBatch]
"""A request whose batch is plain: the request, acks, the time-out in ms, the batch."""


class Destination:
    """A partition, and the requests for it that are gathered in this turn. `config` is the topic's in this turn.

    `size_max`: bytes of a batch that can be plain. `topic_id`: that of its log in this turn, as text.
    """

    __slots__ = ("answers", "config", "gathered", "size_max", "topic_id", "tp")

    def __init__(self, tp: TopicPartition, config: TopicConfig, topic_id: str | None) -> None:
        self.tp = tp
        self.config = config
        self.size_max = 0
        self.topic_id = topic_id
        self.gathered: list[Gathered] = []
        self.answers: dict[int, AppendedAnswer] = {}

    def answer(self, version: int) -> AppendedAnswer:
        """The answer to requests of that version."""
        found = self.answers.get(version)
        if found is None:
            found = self.answers[version] = AppendedAnswer(
                version, topic_key_of(version, self.tp.topic, self.topic_id), self.tp.partition
            )
        return found


def topic_key_of(version: int, topic: str, topic_id: str | None) -> TopicKey:
    """How requests of that version name the topic."""
    return topic if version < TOPIC_IDS_SINCE or topic_id is None else topic_id_uuid(topic_id)


class GatheredProduces:
    """See the module's docstring."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._destinations: dict[bytes, Destination] = {}
        self._by_id: dict[bytes, tuple[Destination, str]] = {}
        """With the topic id that the bytes have, as text."""
        self._by_partition: dict[TopicPartition, Destination] = {}
        self._due: list[Destination] = []
        self._count = 0
        self._bytes = 0

    def gather(self, request: Request) -> bool:
        """Takes the request, if it is one of these. It is answered by `append_all`, or later when it is replicated."""
        frame = request.frame
        header = request.header
        version = header.api_version
        if len(frame) > FRAME_MAX:
            return False
        acks, timeout_ms, key, begin, end = one_partition(version, frame, header.body_offset)
        if not end or (acks != LEADER_ONLY and acks != ACKS_ALL):
            return False
        destination = self._destinations.get(key) if version < TOPIC_IDS_SINCE else self._of_id(key)
        if destination is None or not destination.gathered:
            destination = self._destination(version, key, destination)
            if destination is None:
                return False
        batch = None
        if end - begin <= destination.size_max:
            batch = produced_batches.plain(head_of(frame), frame, begin, end)
        if batch is None:
            return False
        if not destination.gathered:
            self._due.append(destination)
        destination.gathered.append((request, acks, timeout_ms, batch))
        if request.large_size:
            request.keeps_frame = True
        self._count += 1
        self._bytes += len(frame)
        if self._count >= GATHERED_MAX or self._bytes >= GATHERED_BYTES_MAX:
            self.append_all()
        return True

    def _destination(self, version: int, key: bytes, known: Destination | None) -> Destination | None:
        """The partition with its config of this turn. None: requests for it cannot be gathered now."""
        if self._context.recorder.recording is not None:
            return None
        tp = self._named(version, key) if known is None else known.tp
        if tp is None:
            return None
        partition = self._context.replica_manager.partitions.get(tp)
        if partition is None or partition.log is None:
            return None
        topic_id = partition.topic_id
        has_id = version >= TOPIC_IDS_SINCE
        if has_id and (topic_id is None or (known is not None and topic_id != self._by_id[key][1])):
            return None
        if known is None:
            if len(self._destinations) + len(self._by_id) >= DESTINATIONS_MAX:
                self._destinations.clear()
                self._by_id.clear()
                self._by_partition.clear()
            # Old and new versions name it by other bytes. Its requests are gathered together, so that they stay in order.
            known = self._by_partition.get(tp)
            if known is None:
                known = self._by_partition[tp] = Destination(tp, partition.log.config, topic_id)
            if has_id and topic_id is not None:
                self._by_id[key] = (known, topic_id)
            else:
                self._destinations[key] = known
        if not known.gathered:
            if known.topic_id != topic_id:  # the topic was created again
                known.topic_id = topic_id
                known.answers = {}
            known.config = partition.log.config
            known.size_max = produced_batches.plain_size_max(known.config)
        return known

    def _of_id(self, key: bytes) -> Destination | None:
        """The partition that these bytes name by its topic's id. None: it is not known yet, or its log is of another topic in this turn."""
        found = self._by_id.get(key)
        if found is None:
            return None
        destination, topic_id = found
        return destination if not destination.gathered or destination.topic_id == topic_id else None

    def _named(self, version: int, key: bytes) -> TopicPartition | None:
        """The partition that these bytes name. None: it is unknown, or not for clients."""
        try:
            topic, number = partition_of(version, key)
        except UnicodeDecodeError:
            return None
        if isinstance(topic, str):
            tp: TopicPartition | None = TopicPartition(topic, number)
        else:
            tp = self._context.replica_manager.partitions.resolve(topic, number)
        return None if tp is None or tp.topic in INTERNAL_TOPICS else tp

    def append_all(self) -> None:
        """Appends what was gathered, and answers."""
        if not self._due:
            return
        due, self._due = self._due, []
        self._count = self._bytes = 0
        for destination in due:
            gathered, destination.gathered = destination.gathered, []
            try:
                self._append(destination, gathered)
            except Exception:
                # The boundary of these requests: a bug of the broker ends only their connections.
                log.exception("%d Produce requests for %s failed", len(gathered), destination.tp)
                for request, *_ in gathered:
                    request.close(OWN_ERROR)
            for request, *_ in gathered:
                if request.large_size:
                    request.keeps_frame = False
                    request.connection.frame_handled(request)

    def _append(self, destination: Destination, gathered: list[Gathered]) -> None:
        context = self._context
        appends = context.replica_manager.appends
        tp, config = destination.tp, destination.config
        quotas = context.quotas
        has_quotas = quotas.is_on
        while gathered:
            began = quotas.monotonic() if has_quotas else 0.0
            needs_all = False
            batches = []
            for _, acks, _, batch in gathered:
                batches.append(batch)
                if acks == ACKS_ALL:
                    needs_all = True
            offsets, log_start, may_answer = appends.append_plain(tp, batches, needs_all=needs_all, config=config)
            if has_quotas:
                share = (quotas.monotonic() - began) / len(gathered)
                for request, *_ in gathered[: len(offsets)]:
                    if isinstance(request.toll, RequestTime):
                        request.toll.add(share)
            awaited: dict[tuple[int, int], list[tuple[Request, bytes, int]]] = {}
            for at, offset in enumerate(offsets):
                request, acks, timeout_ms, _ = gathered[at]
                header = request.header
                answer = destination.answer(header.api_version).frame(header.correlation_id, offset, log_start)
                if acks == LEADER_ONLY and may_answer:
                    if has_quotas:
                        answer = self._throttled(request, answer, body_size(request), acks)
                    request.respond_whole(answer)
                else:
                    size = body_size(request)
                    # A request that waits must not keep the records in memory.
                    request.frame = NO_FRAME
                    awaited.setdefault((acks, timeout_ms), []).append((request, answer, size))
            if awaited:
                end = offsets[-1] + batches[len(offsets) - 1][2] + 1
                for (acks, timeout_ms), answers in awaited.items():
                    self._answer_later(destination, end, acks, timeout_ms, answers)
            if len(offsets) == len(gathered):
                return
            self._append_alone(destination, gathered[len(offsets)])
            gathered = gathered[len(offsets) + 1 :]

    def _answer_later(
        self,
        destination: Destination,
        end_offset: int,
        acks: int,
        timeout_ms: int,
        answers: list[tuple[Request, bytes, int]],
    ) -> None:
        """Answers requests together, when the end of the last one is replicated, or flushed if they have acks=1."""
        tp = destination.tp
        topic_id = destination.topic_id

        def done(result: ProducePartitionResult) -> None:
            has_quotas = self._context.quotas.is_on
            for request, answer, size in answers:
                if result.error == ErrorCode.NONE:
                    request.respond_whole(self._throttled(request, answer, size, acks) if has_quotas else answer)
                else:
                    key = topic_key_of(request.header.api_version, tp.topic, topic_id)
                    respond(self._context, request, acks, [(key, 1)], [result], size)

        appends = self._context.replica_manager.appends
        if acks == LEADER_ONLY:
            appends.when_flushed(tp, end_offset, done)
        else:
            appends.when_replicated(tp, end_offset, timeout_ms, done)

    def _throttled(self, request: Request, answer: bytes, size: int, acks: int) -> bytes:
        """The answer with the throttle time of a request whose body has `size` bytes."""
        throttle_ms = throttling.of_produce(self._context, request, size, acks)
        return with_throttle_time(request.header.api_version, answer, throttle_ms) if throttle_ms else answer

    def _append_alone(self, destination: Destination, item: Gathered) -> None:
        request, acks, timeout_ms, _ = item
        # As it was gathered: of a frame that is not bytes, `one_partition` reads only the start.
        frame, header = request.frame, request.header
        _, _, _, begin, end = one_partition(header.api_version, frame, header.body_offset)
        size = body_size(request)
        request.frame = NO_FRAME
        tp = destination.tp
        key = topic_key_of(header.api_version, tp.topic, destination.topic_id)
        self._context.replica_manager.appends.append(
            acks,
            timeout_ms,
            [(tp, memoryview(frame)[begin:end])],
            lambda results: respond(self._context, request, acks, [(key, 1)], results, size),
        )


class GuardedProduces(GatheredProduces):
    """Gathers only requests that may write to their topic. `produce` answers the others with the error."""

    def __init__(self, context: ApiContext) -> None:
        super().__init__(context)
        self._topics: dict[bytes, str] = {}
        self._topics_by_id: dict[bytes, str] = {}

    def gather(self, request: Request) -> bool:
        if len(request.frame) > FRAME_MAX:
            return False
        header = request.header
        version = header.api_version
        key = one_partition(version, request.frame, header.body_offset)[2]
        topics = self._topics if version < TOPIC_IDS_SINCE else self._topics_by_id
        topic = topics.get(key)
        if topic is None:
            try:
                named = partition_of(version, key)[0]
            except (UnicodeDecodeError, struct.error):  # another kind of request
                return False
            topic = named if isinstance(named, str) else self._context.replica_manager.partitions.topic_name(named)
            if topic is None:
                return False
            if len(topics) >= DESTINATIONS_MAX:
                topics.clear()
            topics[key] = topic
        # Quiet: `produce` asks again, and logs the denial.
        may_write = rights.on_topic(self._context, request, Operation.WRITE, topic, is_quiet=True)
        return may_write and super().gather(request)
