"""Seeded chaos for exactly-once pipelines: whatever dies, each record that was read is written once (CLI-4, TXN-1 to TXN-5).

    python -m tests.support.pipeline_chaos --seed 7 --rounds 30 --directory DIR

As `tests.support.chaos`, whose faults it uses. An idempotent producer writes the input. Workers, which are processes
(`pipeline_worker`), read it in one group, write one record of output for each, and commit both in one transaction. Faults hit transaction
coordinators, group coordinators, leaders, followers, the controller, workers and links.

At the end, as readers of committed records see it: each record of the input is in the output once; no committed offset went back; in
each generation a partition had one owner; no transaction is open, so the last stable offset is the high watermark everywhere; each
transactional id gets a producer id within FREE_S; replicas are equal. Each worker must commit again within PROGRESS_S after the last
fault.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from protocol.kafka.api_keys import ApiKey
from protocol.topic_names import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tests.support import chaos
from tests.support.background_load import assert_clean, client_of, read_to_end
from tests.support.chaos import BEYOND_S, SESSION_S, STALLED_S
from tests.support.group_chaos import ANSWER_TIMEOUT_S, MEMBER_SESSION_S, committed
from tests.support.group_journals import (
    Acknowledged,
    assert_commits_are_in_the_log,
    assert_one_owner,
    read_group_logs,
)
from tests.support.invariants import Compared, ZooKeeperView, assert_healed, eventually, replica_directory
from tests.support.member_processes import WorkerProcesses
from tests.support.pipeline_worker import HUNG, HUNG_S, INSISTED_S, TRANSACTION_TIMEOUT_MS
from tests.support.topics import create_topics
from tools.cluster.local_cluster import LocalCluster
from tools.faults.faults import healed, inject
from tools.faults.processes import ProcessCluster
from tools.faults.roles import Roles
from tools.faults.rounds import Rounds
from tools.faults.schedule import Kind, Round, link_kinds, process_kinds, role_kinds, schedule
from tools.judge.verdict import MEMBER
from tools.wire.client import ask

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
SMALL_SEGMENTS = {"segment.bytes": "100000", "index.interval.bytes": "500"}
TOPICS = {
    INPUT: PARTITIONS,
    OUTPUT: PARTITIONS,
    OFFSETS_TOPIC: COORDINATED_PARTITIONS,
    TRANSACTION_STATE_TOPIC: COORDINATED_PARTITIONS,
}
"""Topic -> its partitions."""
GROUP = "pipelines"
IDS = ("pipeline-a", "pipeline-b", "pipeline-c*", "pipeline-d*")
"""The transactional ids of the workers, as `WorkerProcesses` takes them."""
RECORDS_PER_S = 300
PROGRESS_S = 30.0
FREE_S = 10.0
"""How soon each transactional id gets a producer id when no transaction is open."""
LONGEST_HANG_S = max(HUNG_S, INSISTED_S) + TRANSACTION_TIMEOUT_MS / 1000
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
    """`committed` and `refused` count transactions; `hung`: workers whose librdkafka hung (`pipeline_worker.HUNG`)."""

    committed: int = 0
    refused: int = 0
    generations: int = 0
    hung: int = 0

    def __str__(self) -> str:
        return (
            f"{super().__str__()}\n\n{self.committed} transactions committed, {self.refused} refused or unknown; "
            f"{self.generations} generations; {self.hung} clients hung"
        )


def run(cluster: LocalCluster, seed: int, rounds: int, kinds: Mapping[str, Kind] = KINDS) -> Outcome:
    """Makes the topics on a running cluster, then `rounds` faults. Raises AssertionError, ClusterError, TimeoutError."""
    print(f"pipeline chaos: seed {seed}, {rounds} rounds", flush=True)
    log = chaos.FaultLog()
    outcome = Outcome(seed)
    victims = ProcessCluster(cluster)
    create_topics(
        cluster.bootstrap_servers, *(NewTopic(topic, PARTITIONS, 3, config=SMALL_SEGMENTS) for topic in (INPUT, OUTPUT))
    )
    with healed(victims), ExitStack() as stack:
        producer = stack.enter_context(chaos.producer_of(cluster, INPUT, PARTITIONS, RECORDS_PER_S, log.began))
        workers = stack.enter_context(WorkerProcesses(cluster, GROUP, INPUT, OUTPUT, PARTITIONS, IDS))
        world = _World(cluster, workers, log)
        world.wait_progress(since=log.began, timeout_s=STALLED_S)
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
        world.wait_progress(since=over, timeout_s=PROGRESS_S + LONGEST_HANG_S)
        outcome.hung = workers.hung()
        chaos.wait_in_sync(world.roles, TOPICS)
        outcome.converged_s = time.monotonic() - over
        producer.stop()
        ends = {partition: end for (topic, partition), end in latest(cluster).items() if topic == INPUT}
        world.wait_no_lag(ends)
        world.assert_offsets()
        workers.close()
        _judge(world, outcome, ends)
        client, _ = client_of(producer, log.now())
        outcome.verdict = assert_clean([client], log.faults, end=log.now())
    chaos.assert_no_tracebacks(cluster)
    outcome.seconds = log.now()
    return outcome


class _World:
    """The workers, and what can be asked of the cluster at any time."""

    def __init__(self, cluster: LocalCluster, workers: WorkerProcesses, log: chaos.FaultLog) -> None:
        self.log = log
        self.cluster, self.workers = cluster, workers
        victims = ProcessCluster(cluster)
        self.roles = Roles(victims)
        self._acknowledged = Acknowledged()
        partitions = [f"{topic}-{number}" for topic, count in TOPICS.items() for number in range(count)]
        self._plays = {
            key: Rounds(victims, log.faulted(victims), partitions, keys, log.add)
            for key, keys in {"transaction-coordinator": [i for i in IDS if "*" not in i], "": [GROUP]}.items()
        }

    def play(self, fault: Round) -> None:
        if fault.kind.role == "member":
            running = self.workers.running
            worker = running[int(fault.pick * len(running))]
            self.log.add_now(fault.kind.action, f"{MEMBER}{worker.name}")
            inject(fault.kind.action, [worker], fault.seconds)
        else:
            self._plays.get(fault.kind.role, self._plays[""]).play(fault)

    def wait_progress(self, since: float, timeout_s: float) -> None:
        """Waits until each worker committed a transaction that it began after `since`."""
        begun: set[str] = set()

        def missing() -> list[str]:
            self.workers.replace_ended()
            for worker in self.workers.running:
                worker.journal.read()
                later = itertools.takewhile(lambda line: line["at"] > since, reversed(worker.journal.lines))
                if any(line["what"] == "committed" and line["since"] > since for line in later):
                    begun.add(worker.name)
            return [worker.name for worker in self.workers.running if worker.name not in begun]

        eventually(lambda: Compared(missing(), []), "every worker commits a transaction", timeout_s)

    def wait_no_lag(self, wanted: Mapping[int, int]) -> None:
        """Waits until the committed offsets are the wanted ones. A backlog may be long, but something of it is committed all the time."""
        furthest: dict[int, int] = dict.fromkeys(wanted, -1)

        def stands_where() -> dict[int, int] | None:
            """The partitions with lag, at what is committed; None: it has just moved."""
            before = dict(furthest)
            for of_broker in committed(self.cluster, GROUP, is_stable=True):
                furthest.update({p: max(at, furthest[p]) for p, at in of_broker.items()})
            return {p: at for p, at in furthest.items() if at < wanted[p]} if before == furthest else None

        while stands_where() != {}:
            eventually(lambda: stands_where() in (None, {}), "a commit of those that lag", PROGRESS_S + LONGEST_HANG_S)
        assert furthest == dict(wanted), f"committed: {furthest}, the input ends at {wanted}"

    def assert_offsets(self) -> None:
        """INV-23: whoever answers as the coordinator has what was committed before the question."""
        for worker in self.workers.all:
            assert worker.exit_code() in (None, 0, HUNG, -signal.SIGKILL), f"{worker.name} ended: {worker.exit_code()}"
        floor = self._acknowledged.read(worker.journal for worker in self.workers.all)
        for offsets in committed(self.cluster, GROUP, is_stable=True):
            lost = {p: (floor[p], at) for p, at in offsets.items() if at < floor.get(p, 0)}
            assert not lost, f"partition -> (committed, answered): {lost}"


def latest(
    cluster: LocalCluster, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> dict[tuple[str, int], int]:
    """(topic, partition) -> the last stable offset, or, for readers of uncommitted records, the high watermark."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    wanted = {TopicPartition(topic, n): OffsetSpec.latest() for topic, count in TOPICS.items() for n in range(count)}
    answers = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=30)
    return {(at.topic, at.partition): future.result(30).offset for at, future in answers.items()}


def _judge(world: _World, outcome: Outcome, ends: Mapping[int, int]) -> None:
    """Into the outcome. `ends`: of the input. Raises AssertionError."""
    cluster = world.cluster
    _assert_all_transactions_end(world)
    wanted = {b"%d@%d" % (partition, offset) for partition, end in ends.items() for offset in range(end)}
    copies = Counter(message.value() for message in read_to_end(cluster.bootstrap_servers, OUTPUT, PARTITIONS))
    missing, twice = wanted - copies.keys(), {value for value, count in copies.items() if count > 1}
    assert not missing, f"{len(missing)} records of the input are not in the output: {sorted(missing)[:5]}"
    assert not twice, f"{len(twice)} records of the input are in the output twice: {sorted(twice)[:5]}"
    assert copies.keys() == wanted
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
    log = read_group_logs(replicas, INPUT)[GROUP]
    assert_commits_are_in_the_log(log, journals)
    outcome.generations = assert_one_owner(log, journals)


def _assert_all_transactions_end(world: _World) -> None:
    """No transaction is open; the last stable offset is the high watermark everywhere; each transactional id gets a producer id."""
    cluster = world.cluster
    eventually(lambda: Compared(_open_transactions(cluster), []), "no open transaction", PROGRESS_S)
    eventually(
        lambda: Compared(latest(cluster), latest(cluster, IsolationLevel.READ_UNCOMMITTED)),
        "each last stable offset is the high watermark",
        PROGRESS_S,
    )
    for transactional_id in world.workers.ids:
        body = {
            "transactional_id": transactional_id,
            "transaction_timeout": TRANSACTION_TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }

        def is_free(transactional_id: str = transactional_id, body: Mapping[str, object] = body) -> bool:
            coordinator = world.roles.transaction_coordinator(transactional_id)
            if coordinator is None:
                return False
            address = ("127.0.0.1", cluster.port(coordinator))
            answer = ask(address, ANSWER_TIMEOUT_S, ApiKey.INIT_PRODUCER_ID, 4, body)
            return answer is not None and not answer.error_code

        eventually(is_free, f"{transactional_id} gets a producer id", FREE_S)


def _open_transactions(cluster: LocalCluster) -> list[tuple[int, str, str]]:
    """(coordinator, transactional id, state) of those that are not ended."""
    body = {"state_filters": NOT_ENDED, "producer_id_filters": []}
    found = []
    for broker in cluster.broker_ids:
        answer = ask(("127.0.0.1", cluster.port(broker)), ANSWER_TIMEOUT_S, ApiKey.LIST_TRANSACTIONS, 0, body)
        if answer is None or answer.error_code:
            found.append((broker, "", "no answer"))
            continue
        found += [(broker, str(s.transactional_id), str(s.transaction_state)) for s in answer.transaction_states]
    return found


if __name__ == "__main__":
    chaos.main("pipeline_chaos", __doc__, KINDS, SETTINGS, run)
