"""Reads topics that are deleted and made again under the same name: it asks for them by their ids (KIP-516)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import iter_batches
from protocol.types import Address, TopicPartition
from tools.sim.clients.fetch_session import FINAL_EPOCH, FetchSession
from tools.sim.clients.history import History
from tools.sim.clients.wire_client import NoAnswer, WireClient, metadata_body

TOPIC_IDS_IN_METADATA, TOPIC_IDS_IN_FETCHES = 10, 13
WAIT = timedelta(milliseconds=200)
ALL_BYTES = 50 << 20
LOOKS, BEGINS_ANEW, ENDS_SESSION = 0.1, 0.1, 0.1
"""How often it looks which topics there are, reads a partition from its start again, and ends its session with a broker."""


class Place(NamedTuple):
    """A partition of one topic that had its name for a while."""

    topic_id: Any
    topic: str
    partition: int


class FleetingReader:
    """Reads what is there, until `stop`. What one id has at an offset never changes, whoever leads and whatever has the name."""

    is_reader = True

    def __init__(
        self, name: str, bootstrap: Sequence[Address], topics: Sequence[str], random: Random, history: History
    ) -> None:
        self._client = WireClient(name, bootstrap, random, history)
        self.name = name
        self._topics = topics
        self._random = random
        self._history = history
        self._leaders: dict[Place, int] = {}
        self._positions: dict[Place, int] = {}
        self._sessions: dict[Address, FetchSession[Place]] = {}
        self._is_stopping = False

    def stop(self) -> None:
        self._is_stopping = True

    async def run(self) -> None:
        while not self._is_stopping:
            if not self._leaders or self._random.random() < LOOKS:
                await self._look()
            by_broker: dict[Address, list[Place]] = defaultdict(list)
            for place, leader in self._leaders.items():
                address = self._client.address_of(leader)
                if address is not None:
                    by_broker[address].append(place)
            await asyncio.gather(*(self._fetch(broker, places) for broker, places in by_broker.items()))
            await self._client.back_off()
        self._client.close()

    async def _look(self) -> None:
        """Asks which topics have the names. Keeps what it knows if nobody answers."""
        await self._client.refresh(())
        try:
            answer = await self._client.ask_any(ApiKey.METADATA, metadata_body(self._topics), TOPIC_IDS_IN_METADATA)
        except NoAnswer:
            return
        self._leaders = {
            Place(topic.topic_id, topic.name, partition.partition_index): partition.leader_id
            for topic in answer.topics
            if topic.error_code == ErrorCode.NONE
            for partition in topic.partitions
        }

    async def _fetch(self, broker: Address, places: list[Place]) -> None:
        client, random = self._client, self._random
        session = self._sessions.pop(broker, None)  # until it has gone well
        if session is None:
            session = FetchSession(client.version(ApiKey.FETCH, TOPIC_IDS_IN_FETCHES))
        for place in places:
            if random.random() < BEGINS_ANEW:
                self._positions[place] = 0
        wanted = {place: (self._positions.get(place, 0), ALL_BYTES) for place in places}
        named, forgotten = session.changes(wanted)
        is_last = random.random() < ENDS_SESSION
        if is_last or session.epoch == 0:
            named, forgotten = places, []
        body = {
            "replica_id": -1,
            "max_wait": WAIT,
            "min_bytes": 1,
            "max_bytes": ALL_BYTES,
            "isolation_level": 0,
            "session_id": session.id,
            "session_epoch": FINAL_EPOCH if is_last else session.epoch,
            "rack_id": "",
            "forgotten_topics_data": tuple(
                {"topic_id": place.topic_id, "partitions": (place.partition,)} for place in forgotten
            ),
            "topics": tuple(
                {
                    "topic_id": place.topic_id,
                    "partitions": (
                        {
                            "partition": place.partition,
                            "fetch_offset": wanted[place][0],
                            "partition_max_bytes": ALL_BYTES,
                        },
                    ),
                }
                for place in named
            ),
        }
        try:
            connection = await client.connection(broker)
            answer = await connection.ask(ApiKey.FETCH, session.version, body)
        except NoAnswer:
            return
        if answer.error_code != ErrorCode.NONE:
            return
        if not is_last:
            session.answered(answer.session_id)
            self._sessions[broker] = session
        self._take(answer, {(place.topic_id, place.partition): place for place in places})

    def _take(self, answer: Any, asked: Mapping[tuple[Any, int], Place]) -> None:
        for topic in answer.responses:
            for found in topic.partitions:
                place = asked.get((topic.topic_id, found.partition_index))
                if place is None:
                    self._history.break_promise(
                        f"{self.name} was answered about partition {found.partition_index} of topic id {topic.topic_id}, "
                        "for which it did not ask"
                    )
                    return
                if found.error_code == ErrorCode.NONE and found.records:
                    self._read(place, found.records)

    def _read(self, place: Place, records: Any) -> None:
        for position, header in iter_batches(records):
            batch = bytes(records[position : position + header.size_in_bytes])
            self._history.read_by_id(
                self.name, place.topic_id, TopicPartition(place.topic, place.partition), header.base_offset, batch
            )
            self._positions[place] = header.last_offset + 1
