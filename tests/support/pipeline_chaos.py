"""Seeded chaos for exactly-once pipelines: whatever dies, each record that was read is written once (CLI-4, TXN-1 to TXN-5, LOG-7).

    python -m tests.support.pipeline_chaos --seed 7 --rounds 30 --directory DIR

As `tests.support.chaos`, whose faults it uses. An idempotent producer writes the input. Workers, which are processes
(`pipeline_worker`), read it in one group, write one record of output for each, and commit both in one transaction. Faults hit
transaction coordinators, group coordinators, leaders, followers, the controller, workers and links. At the end, as readers of
committed records see it: each record of the input is in the output once; no committed offset went back; in each generation a
partition had one owner; no transaction is open, so the last stable offset is the high watermark everywhere; replicas are equal.
Each worker must commit again within PROGRESS_S after the last fault.
"""

from __future__ import annotations

import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from broker.groups.group.messages import CommittedOffset
from broker.groups.offsets_topic.records import GroupKey, OffsetKey, decode_group_value, decode_key, decode_offset_value
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.control_records import marker_in
from protocol.kafka.record_batch import decode_records, iter_batches
from protocol.topic_names import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tests.support import chaos
from tests.support.chaos import BEYOND_S, SESSION_S, STALLED_S
from tests.support.group_journals import GroupLog, JournalFile, assert_one_owner, offsets_of
from tests.support.invariants import Compared, ZooKeeperView, assert_healed, eventually, replica_directory
from tests.support.member_processes import WorkerProcesses
from tests.support.pipeline_worker import HUNG, HUNG_S, TRANSACTION_TIMEOUT_MS
from tests.support.topics import create_topics
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.readiness import ask_broker
from tools.faults.faults import healed, inject
from tools.faults.load import READER, log_of, read_everything
from tools.faults.processes import ProcessCluster
from tools.faults.roles import Roles
from tools.faults.rounds import Rounds
from tools.faults.schedule import Kind, Round, link_kinds, process_kinds, role_kinds, schedule
from tools.faults.script import Faulted
from tools.faults.verdict import Place, Verdict

COORDINATED_PARTITIONS = 4
SETTINGS = {
    **chaos.SETTINGS,
    "offsets.topic.num.partitions": str(COORDINATED_PARTITIONS),
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": str(COORDINATED_PARTITIONS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}
INPUT, OUTPUT, PARTITIONS = "pipeline-input", "pipeline-output", 6
TOPICS = (INPUT, OUTPUT, OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
GROUP = "pipelines"
IDS = ("pipeline-a", "pipeline-b", "pipeline-c*", "pipeline-d*")
"""The transactional ids of the workers, as `WorkerProcesses` takes them."""
RECORDS_PER_S = 300
ANSWER_TIMEOUT_S = 1.0
MEMBER_SESSION_S = 4.0
PROGRESS_S = 30.0
LONGEST_HANG_S = HUNG_S + TRANSACTION_TIMEOUT_MS / 1000
"""So long a client may hang, and its transaction be open, through no fault of the brokers."""
NOT_ENDED = ["Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"]

_PROCESSES, _ROLES, _LINKS = process_kinds(SESSION_S), role_kinds(SESSION_S), link_kinds(SESSION_S)
_LONGER_THAN_A_TRANSACTION_S = TRANSACTION_TIMEOUT_MS / 1000 + 1

KINDS = {
    "kill the transaction coordinator": Kind("kill", "transaction-coordinator", 0, 1.5, weight=6),
    "stop the transaction coordinator": Kind("stop", "transaction-coordinator", 0, 1, weight=2),
    "pause the transaction coordinator briefly": Kind("pause", "transaction-coordinator", 0, 0.6 * SESSION_S, weight=3),
    "pause the transaction coordinator beyond the session": Kind(
        "pause", "transaction-coordinator", *BEYOND_S, weight=2
    ),
    "isolate the transaction coordinator": replace(
        _LINKS["isolate briefly"], role="transaction-coordinator", longest_s=1.3 * SESSION_S, weight=2
    ),
    "kill the coordinator": Kind("kill", "coordinator", 0, 1.5, weight=4),
    "pause the coordinator beyond the session": Kind("pause", "coordinator", *BEYOND_S),
    "kill a worker": Kind("kill", "member", weight=4),
    "close a worker": Kind("stop", "member", weight=1),
    "pause a worker briefly": Kind("pause", "member", 0, 0.6 * MEMBER_SESSION_S, weight=2),
    "pause a worker beyond its session": Kind(
        "pause", "member", 1.3 * MEMBER_SESSION_S, _LONGER_THAN_A_TRANSACTION_S, weight=2
    ),
    "kill a leader": replace(_ROLES["kill a leader"], weight=4),
    "kill a follower": _ROLES["kill a follower"],
    "bounce": replace(_PROCESSES["bounce"], weight=3),
    "stop and start": replace(_PROCESSES["stop and start"], weight=2),
    "pause briefly": replace(_PROCESSES["pause briefly"], weight=2),
    "kill the controller": replace(_PROCESSES["kill the controller"], weight=3),
    "restart two": _PROCESSES["restart two"],
    "restart all": _PROCESSES["restart all"],
    "expire a session": replace(_ROLES["expire a session"], weight=2),
    "isolate briefly": _LINKS["isolate briefly"],
    "cut from ZooKeeper": replace(_LINKS["cut from ZooKeeper"], longest_s=1.5 * SESSION_S, weight=1),
    "resets": _LINKS["resets"],
    "halved messages": _LINKS["halved messages"],
}


@dataclass
class Outcome(chaos.Outcome):
    """`committed` and `refused` count transactions; `aborted`: records of output that no reader of committed records sees; `hung`:
    workers whose librdkafka hung (`pipeline_worker.HUNG`)."""

    committed: int = 0
    refused: int = 0
    aborted: int = 0
    generations: int = 0
    progress_s: float = 0.0
    hung: int = 0

    def __str__(self) -> str:
        return (
            f"{super().__str__()}; {self.committed} transactions committed, {self.refused} refused or unknown, {self.aborted} records "
            f"of output aborted; {self.generations} generations; each worker committed {self.progress_s:.1f} s after the last fault; "
            f"{self.hung} clients hung"
        )


def run(cluster: LocalCluster, seed: int, rounds: int, kinds: Mapping[str, Kind] = KINDS) -> Outcome:
    """Makes the topics on a running cluster, then `rounds` faults. Raises AssertionError, ClusterError, TimeoutError."""
    print(f"pipeline chaos: seed {seed}, {rounds} rounds", flush=True)
    began = time.monotonic()
    outcome = Outcome(seed)
    victims = ProcessCluster(cluster)
    create_topics(cluster.bootstrap_servers, NewTopic(INPUT, PARTITIONS, 3), NewTopic(OUTPUT, PARTITIONS, 3))
    with healed(victims), ExitStack() as stack:
        producer = stack.enter_context(chaos.producer_of(cluster, INPUT, PARTITIONS, RECORDS_PER_S))
        workers = stack.enter_context(WorkerProcesses(cluster, GROUP, INPUT, OUTPUT, PARTITIONS, IDS))
        world = _World(cluster, workers)
        world.wait_progress(since=began, timeout_s=STALLED_S)
        for fault in schedule(seed, rounds, cluster.broker_ids, kinds):
            print(f"{time.strftime('%T')} {fault}", flush=True)
            outcome.kinds[fault.name] += 1
            since = time.monotonic()
            world.play(fault)
            if fault.then == "acknowledgements":
                world.wait_progress(since=since, timeout_s=STALLED_S)
            elif fault.then == "full ISRs":
                chaos.wait_in_sync(world.roles, TOPICS)
            chaos.assert_all_run(cluster)
            chaos.assert_none_failed(producer)
            world.assert_offsets()
        over = time.monotonic()
        cluster.wait_ready()
        outcome.progress_s = world.wait_progress(since=over, timeout_s=PROGRESS_S + LONGEST_HANG_S) - over
        outcome.hung = workers.hung()
        if not outcome.hung:
            assert outcome.progress_s < PROGRESS_S, f"every worker commits only after {outcome.progress_s:.1f} s"
        chaos.wait_in_sync(world.roles, TOPICS)
        outcome.converged_s = time.monotonic() - over
        producer.stop()
        ends = latest(cluster, {INPUT: PARTITIONS}, IsolationLevel.READ_COMMITTED)
        wanted = {partition: end for (_, partition), end in ends.items()}
        eventually(lambda: Compared(world.committed(), [wanted]), "no lag", PROGRESS_S)
        world.assert_offsets()
        workers.close()
        outcome.records = Verdict.of(
            producer.journal, log_of(read_everything(cluster.bootstrap_servers, INPUT, PARTITIONS))
        )
        assert outcome.records.problems(once_and_in_order=True) == []
        _judge(world, outcome)
    chaos.assert_no_tracebacks(cluster)
    outcome.seconds = time.monotonic() - began
    return outcome


class _World:
    """The workers, and what can be asked of the cluster at any time."""

    def __init__(self, cluster: LocalCluster, workers: WorkerProcesses) -> None:
        self.cluster, self.workers = cluster, workers
        victims = ProcessCluster(cluster)
        self.roles = Roles(victims)
        self.floor: dict[int, int] = {}
        """Partition -> its highest offset in a transaction whose commit was acknowledged."""
        partitions = [f"{topic}-{number}" for topic in (INPUT, OUTPUT) for number in range(PARTITIONS)]
        partitions += [
            f"{t}-{n}" for t in (OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC) for n in range(COORDINATED_PARTITIONS)
        ]
        self._plays = {
            key: Rounds(victims, Faulted(victims, ()), partitions, keys, lambda row: print(f"    {row}", flush=True))
            for key, keys in {"transaction-coordinator": [i for i in IDS if "*" not in i], "": [GROUP]}.items()
        }

    def play(self, fault: Round) -> None:
        if fault.kind.role == "member":
            running = self.workers.running
            inject(fault.kind.action, [running[int(fault.pick * len(running))]], fault.seconds)
        else:
            self._plays.get(fault.kind.role, self._plays[""]).play(fault)

    def wait_progress(self, since: float, timeout_s: float) -> float:
        """Waits until each worker committed a transaction that it began after `since`. Returns when all had."""
        begun: dict[str, float] = {}

        def missing() -> list[str]:
            self.workers.replace_hung()
            for worker in self.workers.running:
                worker.journal.read()
                for line, _ in worker.journal.commits():
                    if line["since"] > since:
                        begun.setdefault(worker.name, line["at"])
                        break
            return [worker.name for worker in self.workers.running if worker.name not in begun]

        eventually(lambda: Compared(missing(), []), "every worker commits a transaction", timeout_s)
        return max(begun.values())

    def assert_offsets(self) -> None:
        """INV-23: whoever answers as the coordinator has what was committed before the question."""
        for worker in self.workers.all:
            worker.journal.read()
            for line in worker.journal.lines:
                assert line["what"] != "failed", f"{worker.name}: {line['error']}"
            assert worker.exit_code() in (None, 0, HUNG, -signal.SIGKILL), f"{worker.name} ended: {worker.exit_code()}"
            for _, offsets in worker.journal.commits():
                for partition, offset in offsets.items():
                    self.floor[partition] = max(offset, self.floor.get(partition, 0))
        floor = dict(self.floor)
        for offsets in self.committed():
            lost = {p: (floor[p], at) for p, at in offsets.items() if at < floor.get(p, 0)}
            assert not lost, f"partition -> (committed, answered): {lost}"

    def committed(self) -> list[dict[int, int]]:
        """Partition -> stable offset, of every broker that answers without an error. Partitions with a pending offset are left out."""
        body = {"groups": [{"group_id": GROUP, "topics": None}], "require_stable": True}
        found = []
        for broker in self.cluster.broker_ids:
            address = ("127.0.0.1", self.cluster.port(broker))
            answer = ask_broker(address, ANSWER_TIMEOUT_S, ApiKey.OFFSET_FETCH, 8, body)
            if answer is not None and not answer.groups[0].error_code:
                partitions = [p for topic in answer.groups[0].topics for p in topic.partitions]
                found.append({int(p.partition_index): int(p.committed_offset) for p in partitions if not p.error_code})
        return found


def latest(cluster: LocalCluster, topics: Mapping[str, int], isolation: IsolationLevel) -> dict[tuple[str, int], int]:
    """(topic, partition) -> the last stable offset, or the high watermark for readers of uncommitted records."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    wanted = {TopicPartition(topic, n): OffsetSpec.latest() for topic, count in topics.items() for n in range(count)}
    answers = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=30)
    return {(at.topic, at.partition): future.result(30).offset for at, future in answers.items()}


def _judge(world: _World, outcome: Outcome) -> None:
    """Into the outcome. Raises AssertionError."""
    cluster = world.cluster
    eventually(lambda: Compared(_open_transactions(cluster), []), "no open transaction", PROGRESS_S)
    counts = {INPUT: PARTITIONS, OUTPUT: PARTITIONS, OFFSETS_TOPIC: COORDINATED_PARTITIONS}
    eventually(
        lambda: Compared(
            latest(cluster, counts, IsolationLevel.READ_COMMITTED),
            latest(cluster, counts, IsolationLevel.READ_UNCOMMITTED),
        ),
        "each last stable offset is the high watermark",
        PROGRESS_S,
    )
    written = read_to_end(cluster, "read_committed")
    outcome.aborted = len(read_to_end(cluster, "read_uncommitted")) - len(written)
    copies = Counter(written.values())
    wanted = {b"%d@%d" % place for place in log_of(read_everything(cluster.bootstrap_servers, INPUT, PARTITIONS))}
    missing = sorted(wanted - copies.keys())
    twice = {
        value: sorted(place for place, other in written.items() if other == value)
        for value, count in copies.items()
        if count > 1
    }
    assert not missing, f"{len(missing)} records of the input are not in the output: {missing[:5]}"
    assert not twice, f"{len(twice)} records of the input are in the output twice: {dict(list(twice.items())[:5])}"
    assert copies.keys() <= wanted
    with closing(ZooKeeperView(cluster.zookeeper_connect)) as zk:
        for topic in TOPICS:
            assert_healed(cluster, zk, topic)
        replicas = [
            replica_directory(cluster, state.leader, OFFSETS_TOPIC, partition)
            for partition, state in zk.states(OFFSETS_TOPIC).items()
        ]
    journals = [worker.journal for worker in world.workers.all]
    for journal in journals:
        journal.read()
        outcome.committed += sum(1 for _ in journal.commits())
        outcome.refused += sum(line["what"] == "refused" for line in journal.lines)
    log = read_group_log(replicas)
    outcome.generations = assert_one_owner(log, journals)
    assert_commits_never_go_back(log, journals)


def _open_transactions(cluster: LocalCluster) -> list[tuple[int, str, str]]:
    """(coordinator, transactional id, state) of those that are not ended."""
    body = {"state_filters": NOT_ENDED, "producer_id_filters": []}
    found = []
    for broker in cluster.broker_ids:
        answer = ask_broker(("127.0.0.1", cluster.port(broker)), ANSWER_TIMEOUT_S, ApiKey.LIST_TRANSACTIONS, 0, body)
        if answer is None or answer.error_code:
            found.append((broker, "", "no answer"))
            continue
        found += [(broker, str(s.transactional_id), str(s.transaction_state)) for s in answer.transaction_states]
    return found


def read_to_end(cluster: LocalCluster, isolation: str) -> dict[Place, bytes]:
    """The output, up to where such a reader can read. Raises KafkaException, TimeoutError."""
    settings = {"auto.offset.reset": "error", "enable.partition.eof": True, "isolation.level": isolation}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, **READER, **settings})
    found: dict[Place, bytes] = {}
    unread = set(range(PARTITIONS))
    deadline = time.monotonic() + STALLED_S
    try:
        consumer.assign([TopicPartition(OUTPUT, partition, 0) for partition in unread])
        while unread:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{OUTPUT} was not read to its end in {STALLED_S:g} s: partitions {unread}")
            for message in consumer.consume(1000, timeout=0.5):
                error = message.error()
                if error is None:
                    found[message.partition(), message.offset()] = message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return found


def read_group_log(replicas: Iterable[Path]) -> GroupLog:
    """What these replicas, one of each partition, have of the group. Its commits are where the markers are that commit them.

    A transaction may have the same offset twice: a client that was not answered sends it again, perhaps to the next coordinator.
    """
    log = GroupLog()
    for replica in replicas:
        pending: dict[int, dict[int, CommittedOffset]] = defaultdict(dict)
        for segment in sorted(replica.glob("*.log")):
            data = memoryview(segment.read_bytes())
            for position, header in iter_batches(data):
                if header.is_control:
                    marker = marker_in(data, position)
                    assert marker is not None
                    offsets = pending.pop(header.producer_id, {})
                    log.commits += [(log.generation, p, at.offset) for p, at in offsets.items() if marker.is_commit]
                    continue
                for record in decode_records(data, position):
                    key = decode_key(record.key)
                    if isinstance(key, GroupKey) and key.group_id == GROUP and record.value is not None:
                        log.add_group(decode_group_value(record.value), INPUT)
                    elif isinstance(key, OffsetKey) and key.group_id == GROUP:
                        assert record.value is not None, f"a tombstone for {key}"
                        assert header.producer_id >= 0, f"a commit outside of a transaction: {key}"
                        offset = decode_offset_value(record.value)
                        before = pending[header.producer_id].setdefault(key.partition, offset).offset
                        assert offset.offset == before, f"{key}: {before}, then {offset.offset} in one transaction"
        assert not pending, f"{replica.name} has offsets without a marker, of the producers {sorted(pending)}"
    return log


def assert_commits_never_go_back(log: GroupLog, journals: Iterable[JournalFile]) -> None:
    """INV-23, of committed transactions, and each that was acknowledged is in the log."""
    last: dict[int, int] = {}
    for generation, partition, offset in log.commits:
        before = last.get(partition, 0)
        assert offset > before, f"partition {partition}, generation {generation}: {offset} was committed after {before}"
        last[partition] = offset
    stored = {(partition, offset) for _, partition, offset in log.commits}
    for journal in journals:
        for line, _ in journal.commits():
            lost = offsets_of(line).items() - stored
            assert not lost, f"{journal.name}: the log has no commit of {lost}: {line}"


if __name__ == "__main__":
    chaos.main("pipeline_chaos", __doc__, KINDS, SETTINGS, run)
