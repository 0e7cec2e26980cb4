"""A consumer of given partitions: fetches with any version, and checks that each answer belongs to the partition that it asked for."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from random import Random
from typing import Any

from protocol.errors import ErrorCode, error_name, is_retriable
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import decode_records, iter_batches
from protocol.types import NO_LEADER, Address, TopicPartition
from tools.sim.clients.fetch_session import FINAL_EPOCH, SESSIONS_SINCE, FetchSession
from tools.sim.clients.history import History
from tools.sim.clients.wire_client import PATIENCE_S, NoAnswer, WireClient
from tools.sim.policies import text_of
from tools.wire.frames import Aborted
from tools.wire.offsets import EARLIEST

TOPIC_IDS_SINCE = 13
RACKS_SINCE = 11
"""A follower refuses consumers that are older."""
RACKS = ("rack-1", "rack-2", "rack-3")
"""Those of the brokers."""
WAIT = timedelta(milliseconds=500)


class Reader:
    """Reads from the first record on, until `stop`."""

    is_reader = True

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[Address],
        partitions: Sequence[TopicPartition],
        random: Random,
        history: History,
    ) -> None:
        self._client = WireClient(name, bootstrap, random, history)
        self.name = name
        self._random = random
        self._history = history
        self.group = name
        """Under which name it reports: a member of a group has that of its group."""
        self.positions = dict.fromkeys(partitions, 0)
        self._topics = sorted({tp.topic for tp in partitions})
        self.is_committed_only = random.random() < 0.5
        self._out_of_range: dict[TopicPartition, int] = {}
        """How often the leader has said that the position is not in its log."""
        self._overtaken: set[TopicPartition] = set()
        """Partitions whose start has passed the position: retention was faster."""
        self._rack = random.choice(("", *RACKS))
        self._preferred: dict[TopicPartition, int] = {}
        """Followers that leaders have named as closer (KIP-392)."""
        self._has_sessions = random.random() < 0.5
        self._sessions: dict[Address, FetchSession[TopicPartition]] = {}
        self._is_stopping = False

    def stop(self) -> None:
        self._is_stopping = True

    async def run(self) -> None:
        client = self._client
        await client.refresh(self._topics)
        while not self._is_stopping:
            results = await self._fetch_all()
            if not all(results):
                await client.back_off()
                await client.refresh(self._topics)
            elif self._random.random() < 0.5:
                await asyncio.sleep(self._random.random())
        client.close()

    async def _fetch_all(self) -> list[bool]:
        """Fetches from each broker once. False: that broker did not answer well, or a leader is not known."""
        for tp in sorted(self._overtaken):
            await self._go_to_start(tp)
        by_broker: dict[Address, list[TopicPartition]] = defaultdict(list)
        for tp in self.positions:
            address = self._client.address_of(self._preferred.get(tp, self._client.leaders.get(tp, NO_LEADER)))
            if address is not None:
                by_broker[address].append(tp)
        are_known = sum(map(len, by_broker.values())) == len(self.positions)
        results = await asyncio.gather(*(self._fetch(broker, tps) for broker, tps in by_broker.items()))
        return [*results, are_known]

    async def _go_to_start(self, tp: TopicPartition) -> None:
        leader = next(iter(self._client.by_leader([tp])), None)
        partition = {
            "partition_index": tp.partition,
            "current_leader_epoch": -1,
            "timestamp": EARLIEST,
            "max_num_offsets": 1,
        }
        body = {
            "replica_id": -1,
            "isolation_level": 0,
            "timeout": timedelta(seconds=30),
            "topics": ({"name": tp.topic, "partitions": (partition,)},),
        }
        try:
            answer = await self._client.ask(leader, ApiKey.LIST_OFFSETS, body, oldest=1) if leader else None
        except NoAnswer:
            return
        found = answer.topics[0].partitions[0] if answer is not None else None
        if found is not None and found.error_code == ErrorCode.NONE:
            self._overtaken.discard(tp)
            if tp in self.positions:
                self.positions[tp] = max(found.offset, self.positions[tp])

    async def _fetch(self, broker: Address, tps: list[TopicPartition]) -> bool:
        client, random = self._client, self._random
        random.shuffle(tps)
        session = self._sessions.pop(broker, None)  # until it has gone well
        oldest = RACKS_SINCE if self._rack else 0
        version = client.version(ApiKey.FETCH, oldest) if session is None else session.version
        if version >= TOPIC_IDS_SINCE and not all(tp.topic in client.topic_ids for tp in tps):
            version = TOPIC_IDS_SINCE - 1
        if self._has_sessions and session is None and version >= SESSIONS_SINCE:
            session = FetchSession(version)
        wanted = {tp: (self.positions[tp], random.choice((1, 500, 1 << 20))) for tp in tps}
        named, forgotten = (tps, []) if session is None else session.changes(wanted)
        body = {
            "replica_id": -1,
            "max_wait": WAIT,
            "min_bytes": random.choice((1, 1, 1, 1000)),
            "max_bytes": random.choice((1, 1000, 1 << 20, 50 << 20)),
            "isolation_level": int(self.is_committed_only),
            "session_id": 0 if session is None else session.id,
            "session_epoch": FINAL_EPOCH if session is None else session.epoch,
            "rack_id": self._rack,
            "forgotten_topics_data": tuple(
                {
                    "topic": topic,
                    "topic_id": client.topic_ids.get(topic),
                    "partitions": tuple(tp.partition for tp in of_topic),
                }
                for topic, of_topic in _by_topic(forgotten).items()
            ),
            "topics": tuple(
                {
                    "topic": topic,
                    "topic_id": client.topic_ids.get(topic),
                    "partitions": tuple(
                        {
                            "partition": tp.partition,
                            "fetch_offset": wanted[tp][0],
                            "partition_max_bytes": wanted[tp][1],
                        }
                        for tp in of_topic
                    ),
                }
                for topic, of_topic in _by_topic(named).items()
            ),
        }
        try:
            async with asyncio.timeout(PATIENCE_S):
                connection = await client.connection(broker)
                answer = await connection.ask(ApiKey.FETCH, version, body)
        except (NoAnswer, TimeoutError):
            self._read_from_leaders(tps)
            return False
        if getattr(answer, "error_code", ErrorCode.NONE) != ErrorCode.NONE:
            return False
        if session is not None:
            session.answered(answer.session_id)
            self._sessions[broker] = session
            self._history.counts["fetches in sessions"] += session.epoch > 1
        is_well = True
        for topic in answer.responses:
            name = client.names.get(topic.topic_id) if version >= TOPIC_IDS_SINCE else topic.topic
            for partition in topic.partitions:
                is_well &= self._take(TopicPartition(str(name), partition.partition_index), partition, broker)
        return is_well

    def _read_from_leaders(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._preferred.pop(tp, None)

    def _take(self, tp: TopicPartition, found: Any, leader: Address) -> bool:
        if tp not in self.positions:
            self._history.break_promise(f"{self.name} was answered about {tp}, for which it did not ask")
            return False
        code = ErrorCode(found.error_code)
        if code != ErrorCode.NONE:
            self._read_from_leaders([tp])
        elif (preferred := getattr(found, "preferred_read_replica", NO_LEADER)) != NO_LEADER:
            self._preferred[tp] = preferred
            self._history.counts["sent to followers"] += 1
        if code == ErrorCode.OFFSET_OUT_OF_RANGE and tp.topic in self._history.truncating:
            self._overtaken.add(tp)
            return False
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # A follower that is behind says so, too, to a reader that takes it for the leader (KIP-392).
            self._out_of_range[tp] = self._out_of_range.get(tp, 0) + self._history.is_led_by(tp, leader[0])
            if self._out_of_range[tp] > 1:
                self._history.break_promise(
                    f"{self.name} cannot read {tp} at {self.positions[tp]} from its leader {leader[0]}"
                )
            return False
        self._out_of_range.pop(tp, None)
        if code != ErrorCode.NONE:
            if not is_retriable(code):
                self._history.break_promise(
                    f"{self.name} cannot read {tp} at {self.positions[tp]} from {leader[0]}: {error_name(code)}"
                )
            return False
        records = found.records
        if not records:
            return True
        aborted = Aborted((one.producer_id, one.first_offset) for one in found.aborted_transactions or ())
        for position, header in iter_batches(records):
            is_aborted = aborted.has(header)
            if header.last_offset < self.positions[tp]:
                continue
            self._history.batch_read(tp, bytes(records[position : position + header.size_in_bytes]))
            if not (header.is_control or is_aborted):
                for record in decode_records(records, position):
                    if record.offset >= self.positions[tp]:
                        self._got(tp, record.offset, text_of(record.value, record.headers))
            self.positions[tp] = header.last_offset + 1
        return True

    def _got(self, tp: TopicPartition, offset: int, text: bytes) -> None:
        self._history.read(self.name, None if self.is_committed_only else self.group, tp, offset, text)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = defaultdict(list)
    for tp in partitions:
        found[tp.topic].append(tp)
    return found
