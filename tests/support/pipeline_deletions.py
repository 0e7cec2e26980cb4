"""Deletions while pipelines run: topics are deleted and made again, and DeleteRecords cuts others (TXN-1, LOG-1, CTL-9).

Each act happens while a fault is injected, so a broker with a replica, the controller or a coordinator may be away. What an act removes is
noted, for the judge: nothing else may be missing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from protocol.kafka.api_keys import ApiKey
from tests.support.pipeline_readers import CommittedReader, Place, read_to_end
from tools.cluster.local_cluster import LocalCluster
from tools.wire.client import ask

MAKE_SIDE, MAKE_FLEETING, CUT_INPUT, CUT_OUTPUT, CUT_SIDE = (
    "the side output is made again",
    "the fleeting input is made again",
    "records of the input are deleted",
    "records of the output are deleted",
    "records of the side output are deleted",
)
ACTS = {MAKE_SIDE: 4, MAKE_FLEETING: 3, CUT_INPUT: 3, CUT_OUTPUT: 2, CUT_SIDE: 1, "": 2}
"""What a round does beside its fault -> the weight of this choice; the empty name: nothing."""
REMADE_PARTITIONS_MAX = 6
DONE_S = 120.0
"""How long an act may take until it is done, after the fault: a deletion waits for all brokers with a replica."""
ASKED_AGAIN_S = 0.2
ANSWER_S = 5.0
READ_S = 5.0
"""How long the old side output is read before it is deleted. What is not read is not judged."""
METADATA_WITH_IDS = 12
NOTED_S = 2.0
"""More than log.flush.start.offset.checkpoint.interval.ms."""


@dataclass(frozen=True)
class Act:
    """`pick`, `share`: from 0 to below 1; they choose the partition and the place of a cut, or the number of partitions."""

    name: str
    pick: float
    share: float


def acts(seed: int, rounds: int) -> list[Act]:
    """One for each round."""
    rng = random.Random(f"{seed}: deletions")
    names = rng.choices(list(ACTS), list(ACTS.values()), k=rounds)
    return [Act(name, rng.random(), rng.random()) for name in names]


@dataclass
class Remade:
    """A topic that is deleted and made again. `times`: how often; `partitions`: what it has now."""

    topic: str
    partitions: int = REMADE_PARTITIONS_MAX
    times: int = 0


class Deletions:
    """`cut_to`, `cut_for_sure`: input partition -> the highest offset up to which a deletion was asked for, and is certain to last.

    `side`: what was read of each side output, the one that is there now excepted. `disturbed_until`: see `pipeline_judge`.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        topics: Mapping[str, int],
        side: Remade,
        fleeting: Remade,
        output_reader: CommittedReader,
        committed: Callable[[], Mapping[int, int]],
    ) -> None:
        """`topics`: the input, the output and their partitions, in this order. `committed`: the group's offsets, at the least."""
        self.cut_to: dict[int, int] = {}
        self.cut_for_sure: dict[int, int] = {}
        self.side: list[dict[Place, bytes]] = []
        self.disturbed_until = 0.0
        self._cluster = cluster
        (self._input, self._input_partitions), (self._output, self._output_partitions) = topics.items()
        self._side, self._fleeting = side, fleeting
        self._output_reader = output_reader
        self._committed = committed

    def carry_out(self, act: Act) -> str:
        """Returns what was done, for printing. Raises TimeoutError."""
        carry_out: dict[str, Callable[[Act], str]] = {
            MAKE_SIDE: self._make_side_again,
            MAKE_FLEETING: lambda act: self._make_again(self._fleeting, act),
            CUT_INPUT: self._cut_input,
            CUT_OUTPUT: self._cut_output,
            CUT_SIDE: self._cut_side,
        }
        return carry_out[act.name](act) if act.name else ""

    # -- topics that are made again -----------------------------------------------------------------------------------

    def _make_side_again(self, act: Act) -> str:
        side = self._side
        found, is_all = read_to_end(self._cluster.bootstrap_servers, side.topic, side.partitions, READ_S)
        self.side.append(found)
        done = self._make_again(side, act)
        self.disturbed_until = time.monotonic()
        return f"{done}; {len(found)} records were read before, {'all' if is_all else 'some'}"

    def _make_again(self, made: Remade, act: Act) -> str:
        began = time.monotonic()
        partitions = 1 + int(act.pick * REMADE_PARTITIONS_MAX)
        old: set[str] = set()
        self._insist(f"a broker knows {made.topic}", lambda: bool(old.update(self._topic_ids(made.topic)) or old))
        self._insist(f"{made.topic} is deleted", lambda: self._delete(made.topic))
        self._insist(f"{made.topic} is made again", lambda: self._make(made.topic, partitions, old))
        before, made.partitions = made.partitions, partitions
        made.times += 1
        return f"{before} partitions, then {partitions}, in {time.monotonic() - began:.1f} s"

    def _admin(self) -> AdminClient:
        """A new one for each request: it asks for the controller, and for leaders, first. Without it, no answer comes."""
        return AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers, "log_level": 2})

    def _delete(self, topic: str) -> bool:
        try:
            admin = self._admin()
            admin.delete_topics([topic], request_timeout=ANSWER_S)[topic].result(2 * ANSWER_S)
        except KafkaException as problem:
            if problem.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        return True

    def _make(self, topic: str, partitions: int, old: set[str]) -> bool:
        """A name is free when all replicas of the old topic are gone. A new topic id says that an earlier attempt has succeeded."""
        try:
            admin = self._admin()
            made = admin.create_topics([NewTopic(topic, partitions, 3)], request_timeout=ANSWER_S)
            made[topic].result(2 * ANSWER_S)
        except (KafkaException, TimeoutError):
            if not self._topic_ids(topic) - old:
                raise
        return True

    def _topic_ids(self, topic: str) -> set[str]:
        """The ids of the topic by which the brokers know it: more than one while they hear of a new one."""
        body = {"topics": [{"name": topic, "topic_id": None}], "allow_auto_topic_creation": False}
        found = set()
        for broker in self._cluster.broker_ids:
            address = ("127.0.0.1", self._cluster.port(broker))
            answer = ask(address, 1.0, ApiKey.METADATA, METADATA_WITH_IDS, body)
            if answer is not None and not answer.topics[0].error_code:
                found.add(str(answer.topics[0].topic_id))
        return found

    def _cut_side(self, act: Act) -> str:
        """At the high watermark: perhaps in the middle of transactions."""
        partition = int(act.pick * self._side.partitions)
        start = self._delete_records(self._side.topic, partition, -1)
        self.disturbed_until = time.monotonic()
        return f"partition {partition} begins at {start}"

    # -- input and output ---------------------------------------------------------------------------------------------

    def _cut_input(self, act: Act) -> str:
        """Before the committed offset, or after it: then records are deleted that nobody has read."""
        partition = int(act.pick * self._input_partitions)
        low, high = (self._offset(partition, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        committed = min(max(self._committed().get(partition, 0), low), high)
        if act.share < 0.5:
            offset = low + int(2 * act.share * (committed - low))
        else:
            offset = committed + int((2 * act.share - 1) * (high - committed))
        self.cut_to[partition] = max(offset, self.cut_to.get(partition, 0))
        start = self._delete_records(self._input, partition, offset)
        assert start >= offset, f"{self._input}-{partition} begins at {start}, records before {offset} were deleted"
        # As in Kafka, an acknowledged deletion is lost if all brokers are killed before they note the log start.
        time.sleep(NOTED_S)
        lasts = self._offset(partition, OffsetSpec.earliest()) >= offset
        if lasts:
            self.cut_for_sure[partition] = max(offset, self.cut_for_sure.get(partition, 0))
        done = f"partition {partition}, [{low}, {high}), committed {committed}: begins at {start}"
        return done if lasts else f"{done}, and no longer"

    def _cut_output(self, act: Act) -> str:
        """Up to what the reader of the output has read, at the most."""
        partition = int(act.pick * self._output_partitions)
        offset = int(act.share * self._output_reader.positions[partition])
        return f"partition {partition} begins at {self._delete_records(self._output, partition, offset)}"

    def _delete_records(self, topic: str, partition: int, offset: int) -> int:
        """The log start afterwards."""
        starts: list[int] = []

        def attempt() -> bool:
            at = TopicPartition(topic, partition, offset)
            admin = self._admin()
            asked = admin.delete_records([at], request_timeout=ANSWER_S, operation_timeout=ANSWER_S)
            starts.extend(answer.result(2 * ANSWER_S).low_watermark for answer in asked.values())
            return True

        self._insist(f"{topic}-{partition} is cut at {offset}", attempt)
        return starts[-1]

    def _offset(self, partition: int, spec: OffsetSpec) -> int:
        """Of the input."""
        found: list[int] = []

        def attempt() -> bool:
            at = TopicPartition(self._input, partition)
            admin = self._admin()
            asked = admin.list_offsets({at: spec}, request_timeout=ANSWER_S)
            found.append(asked[at].result(2 * ANSWER_S).offset)
            return found[-1] >= 0  # librdkafka may answer -1001 and no error, if the leader has moved

        self._insist(f"{self._input}-{partition} has a leader", attempt)
        return found[-1]

    def _insist(self, what: str, attempt: Callable[[], bool]) -> None:
        """Tries again until the attempt returns True. It may raise KafkaException and TimeoutError."""
        deadline = time.monotonic() + DONE_S
        said: object = "no error"
        while True:
            try:
                if attempt():
                    return
            except (KafkaException, TimeoutError) as problem:
                said = problem.args[0] if problem.args else "no answer"
            if time.monotonic() > deadline:
                raise TimeoutError(f"not in {DONE_S:g} s: {what}; the last error: {said}")
            time.sleep(ASKED_AGAIN_S)
