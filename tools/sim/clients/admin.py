"""An admin who keeps the cluster busy: topics come and go under the same names, replicas move, leaders are elected.

If brokers have several log directories, replicas move between them, too (KIP-113).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Any

from protocol.errors import ErrorCode, error_name, is_retriable
from protocol.kafka.api_keys import ApiKey
from protocol.types import Address, TopicPartition
from tools.sim.clients.history import History
from tools.sim.clients.wire_client import NoAnswer, WireClient
from tools.sim.judging import LOG_TOPICS

TIMEOUT = timedelta(seconds=10)
PAUSE_S_MIN = 0.5
FLEETING, FLEETING_PARTITIONS = ("fleeting0", "fleeting1"), 5
"""Topics that come and go, and how many partitions they may have."""
ALLOWED = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)
"""Answers that are right while brokers are away, or an earlier request of this admin is under way."""
LOG_PARTITIONS = 3
"""Of each topic of LOG_TOPICS, in every world."""
LOOKS_MAX, LOOK_S = 10, 0.5
"""So often the admin looks whether its moves between log directories have ended."""


class Admin:
    """Creates the topics with `create`, then does random things with `run`, until `stop`.

    `remakes`: it often deletes a fleeting topic, and makes it again at once.
    """

    is_reader = False

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[Address],
        partitions: Mapping[str, int],
        replicas: int,
        brokers: Sequence[int],
        random: Random,
        history: History,
        configs: Mapping[str, Mapping[str, str]] | None = None,
        *,
        remakes: bool = False,
        log_dirs: Sequence[str] = (),
        pauses: float = 1.0,
    ) -> None:
        self._client = WireClient(name, bootstrap, random, history)
        self.name = name
        self._partitions = partitions
        self._replicas = replicas
        self._brokers = list(brokers)
        self._configs = configs or {}
        self._random = random
        self._history = history
        self._remakes = remakes
        self._log_dirs = log_dirs
        has_several = len(log_dirs) > 1
        self._pause_s = max(PAUSE_S_MIN, (1.0 if remakes or has_several else 3.0) * pauses)
        tasks = (self._make_again,) * 3 * remakes + (self._change_directory,) * 3 * has_several
        self._tasks = (self._come_and_go, self._move, self._elect, *tasks)
        self._is_stopping = False

    def stop(self) -> None:
        self._is_stopping = True

    async def create(self) -> None:
        """Until all topics are there."""
        wanted = dict(self._partitions)
        while wanted:
            answer = await self._ask(ApiKey.CREATE_TOPICS, self._creation(wanted, self._replicas))
            for topic in answer.topics if answer is not None else ():
                if topic.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    wanted.pop(topic.name, None)
            await self._client.back_off()

    async def run(self) -> None:
        while not self._is_stopping:
            await asyncio.sleep(self._random.expovariate(1 / self._pause_s))
            await self._random.choice(self._tasks)()
        self._client.close()

    async def _ask(self, api: ApiKey, body: Mapping[str, Any], broker: int | None = None) -> Any:
        """The controller's answer, or that of a broker; None if there is none."""
        try:
            await self._client.refresh(())
            address = self._client.address_of(self._client.controller if broker is None else broker)
            return None if address is None else await self._client.ask(address, api, body)
        except NoAnswer:
            return None

    def _creation(self, topics: Mapping[str, int], replicas: int) -> dict[str, Any]:
        return {
            "timeout": TIMEOUT,
            "validate_only": False,
            "topics": tuple(
                {
                    "name": name,
                    "num_partitions": count,
                    "replication_factor": replicas,
                    "assignments": (),
                    "configs": tuple(
                        {"name": key, "value": value} for key, value in self._configs.get(name, {}).items()
                    ),
                }
                for name, count in topics.items()
            ),
        }

    async def _come_and_go(self) -> None:
        """A topic is created or deleted; next time, perhaps, made again with fewer partitions."""
        name = self._random.choice(FLEETING)
        if self._random.random() < 0.5:
            await self._make(name)
        else:
            await self._delete(name)

    async def _make_again(self) -> None:
        """With another number of partitions."""
        name = self._random.choice(FLEETING)
        await self._delete(name)
        await asyncio.sleep(self._random.random())
        await self._make(name)

    async def _make(self, name: str) -> None:
        partitions = self._random.randint(1, FLEETING_PARTITIONS)
        # Too few of them for min.insync.replicas would keep a transaction from its markers, as in Kafka.
        replicas = self._replicas if self._remakes else self._random.randint(1, 3)
        body = self._creation({name: partitions}, replicas)
        answer = await self._ask(ApiKey.CREATE_TOPICS, body)
        self._check([topic.error_code for topic in answer.topics] if answer is not None else [])

    async def _delete(self, name: str) -> None:
        body = {"timeout": TIMEOUT, "topic_names": (name,), "topics": ({"name": name, "topic_id": None},)}
        answer = await self._ask(ApiKey.DELETE_TOPICS, body)
        self._check([topic.error_code for topic in answer.responses] if answer is not None else [])

    async def _move(self) -> None:
        """A partition of the load gets other replicas, or the same in another order."""
        tp = self._any_partition()
        replicas = tuple(self._random.sample(self._brokers, self._replicas))
        body = {
            "timeout": TIMEOUT,
            "topics": ({"name": tp.topic, "partitions": ({"partition_index": tp.partition, "replicas": replicas},)},),
        }
        answer = await self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body)
        if answer is not None:
            self._check([answer.error_code, *(p.error_code for topic in answer.responses for p in topic.partitions)])
            self._history.counts["moves asked for"] += 1

    async def _elect(self) -> None:
        tp = self._any_partition()
        body = {
            "timeout": TIMEOUT,
            "election_type": 0,
            "topic_partitions": ({"topic": tp.topic, "partitions": (tp.partition,)},),
        }
        answer = await self._ask(ApiKey.ELECT_LEADERS, body)
        if answer is not None:
            results = answer.replica_election_results
            self._check([row.error_code for topic in results for row in topic.partition_result])

    async def _change_directory(self) -> None:
        """Replicas of a broker go to one of its log directories. Then the admin looks whether they are there."""
        broker = self._random.choice(self._brokers)
        wanted = dict.fromkeys(self._any_replica() for _ in range(self._random.randint(1, 4)))
        targets = {tp: self._random.choice(self._log_dirs) for tp in wanted}
        body = {
            "dirs": tuple(
                {
                    "path": path,
                    "topics": tuple(
                        {"name": tp.topic, "partitions": (tp.partition,)} for tp in targets if targets[tp] == path
                    ),
                }
                for path in dict.fromkeys(targets.values())
            )
        }
        answer = await self._ask(ApiKey.ALTER_REPLICA_LOG_DIRS, body, broker)
        rows = [(topic.topic_name, row) for topic in answer.results for row in topic.partitions] if answer else []
        self._check([row.error_code for _, row in rows])
        taken = {TopicPartition(name, row.partition_index) for name, row in rows if row.error_code == ErrorCode.NONE}
        self._history.counts["moves between directories"] += len(taken)
        for _ in range(LOOKS_MAX * bool(taken)):
            await asyncio.sleep(self._random.random() * LOOK_S)
            moving = await self._moving_on(broker)
            if moving is not None and not taken & moving:
                self._history.counts["moves between directories that were seen to end"] += len(taken)
                return

    async def _moving_on(self, broker: int) -> set[TopicPartition] | None:
        """The replicas that move between the broker's log directories, by what it says; None if it says nothing."""
        answer = await self._ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, broker)
        if answer is None:
            return None
        self._check([directory.error_code for directory in answer.results])
        rows = [
            (TopicPartition(topic.name, row.partition_index), row.is_future_key)
            for directory in answer.results
            for topic in directory.topics
            for row in topic.partitions
        ]
        there = [tp for tp, is_future in rows if not is_future]
        if len(there) > len(set(there)):
            self._history.break_promise(f"LOG-6: broker {broker} says that replicas are in two directories: {there}")
        return {tp for tp, is_future in rows if is_future}

    def _any_replica(self) -> TopicPartition:
        """Of the load, or a log of groups or transactions, or of a topic that comes and goes."""
        topic = self._random.choice((*self._partitions, *LOG_TOPICS, *FLEETING))
        partitions = self._partitions.get(topic, LOG_PARTITIONS)
        return TopicPartition(topic, self._random.randrange(partitions))

    def _any_partition(self) -> TopicPartition:
        topic = self._random.choice(list(self._partitions))
        return TopicPartition(topic, self._random.randrange(self._partitions[topic]))

    def _check(self, codes: Sequence[int]) -> None:
        for code in codes:
            if code != ErrorCode.NONE and code not in ALLOWED and not is_retriable(code):
                self._history.break_promise(f"{self.name} was refused: {error_name(code)}")
