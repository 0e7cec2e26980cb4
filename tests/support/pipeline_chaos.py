"""Seeded chaos for exactly-once pipelines: whatever dies, each record that was read is written once (CLI-4, TXN-1 to TXN-5, LOG-7).

    python -m tests.support.pipeline_chaos --seed 7 --rounds 30 --directory DIR

As `tests.support.chaos`, whose faults it uses. An idempotent producer writes the input. Workers, which are processes
(`pipeline_worker`), read it in one group, write one record of output and one of side output for each, and commit all in one transaction.
Two more workers do so for a fleeting input, in a group of their own.
Faults hit transaction coordinators, group coordinators, leaders, followers, the controller, workers and links. Meanwhile
(`pipeline_deletions`) the side output and the fleeting input are deleted and made again, also with fewer partitions, and DeleteRecords cuts
the other topics. The internal topics have small segments, and are compacted all the time.

At the end, as readers of committed records see it: each record of the input is in both outputs once, unless it was deleted
(`pipeline_judge`); no committed offset went back; in each generation a partition had one owner; compaction has kept the latest value
of each key, on all replicas; no transaction is open, so the last stable offset is the high watermark everywhere; each transactional id
gets a producer id within FREE_S; replicas are equal. Each worker must commit again within PROGRESS_S after the last fault.
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from broker.coordination.ownership import partition_for
from broker.groups.group.messages import CommittedOffset
from broker.groups.offsets_topic.records import GroupKey, OffsetKey, decode_group_value, decode_key, decode_offset_value
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.control_records import marker_in
from protocol.kafka.record_batch import decode_records, iter_batches
from protocol.topic_names import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tests.support import chaos
from tests.support.background_load import Ids, assert_clean, client_of
from tests.support.chaos import BEYOND_S, SESSION_S, STALLED_S
from tests.support.group_journals import GroupLog, JournalFile, assert_one_owner, offsets_of
from tests.support.injected import healed, inject
from tests.support.invariants import (
    Compared,
    ZooKeeperView,
    assert_healed,
    assert_known_alike,
    eventually,
    replica_directory,
    wait_full_isr,
)
from tests.support.member_processes import WorkerProcesses
from tests.support.pipeline_deletions import DONE_S, REMADE_PARTITIONS_MAX, Act, Deletions, Remade, acts
from tests.support.pipeline_fleeting import FleetingLoad, fleeting_mark
from tests.support.pipeline_judge import FLEETING_MARK, Evidence, parsed
from tests.support.pipeline_readers import CommittedReader, LogHistory, latest_values, read_to_end
from tests.support.pipeline_worker import FLEETING, HUNG, HUNG_S, INSISTED_S, STALE, TRANSACTION_TIMEOUT_MS
from tests.support.topics import create_topics
from tools.cluster.local_cluster import LocalCluster
from tools.faults.processes import ProcessCluster
from tools.faults.roles import Roles
from tools.faults.rounds import Rounds
from tools.faults.schedule import Kind, Round, link_kinds, process_kinds, role_kinds, schedule
from tools.judge.kinds import UNRECOVERED, UNSEEN
from tools.judge.reports import CONSUMED, Report
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
    # A client must not make the side output while it is deleted.
    "auto.create.topics.enable": "false",
    # Segments of some seconds. What is older than 15 s is compacted: the judge has read it by then.
    "offsets.topic.segment.bytes": "8000",
    "transaction.state.log.segment.bytes": "8000",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.cleaner.min.compaction.lag.ms": "15000",
    # Longer than any broker is away: a follower must see each tombstone.
    "log.cleaner.delete.retention.ms": "60000",
    "log.retention.check.interval.ms": "1000",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
}
INPUT, OUTPUT, SIDE, FLEETING_INPUT = "pipeline-input", "pipeline-output", "pipeline-side", "pipeline-fleeting"
PARTITIONS = 6
"""Of the input and the output."""
SMALL_SEGMENTS = {"segment.bytes": "100000", "index.interval.bytes": "500"}
INTERNAL = (OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
TOPICS = (INPUT, OUTPUT, SIDE, FLEETING_INPUT, *INTERNAL)
GROUP = "pipelines"
IDS = ("pipeline-a", "pipeline-b", "pipeline-c*", "pipeline-d*")
"""The transactional ids of the workers, as `WorkerProcesses` takes them."""
FLEETING_GROUP = "fleeting"
FLEETING_IDS = ("fleeting-a", "fleeting-b*")
RECORDS_PER_S = 300
FLEETING_RECORDS_PER_S = 30
ANSWER_TIMEOUT_S = 1.0
MEMBER_SESSION_S = 4.0
PROGRESS_S = 30.0
AWAKE_EVERY_S = 0.1
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


class OwnTime:
    """Seconds without the time in which the machine let nobody run: a bound of seconds means a machine that is not busy."""

    def __init__(self) -> None:
        self._lost_s = 0.0
        threading.Thread(target=self._run, name="own time", daemon=True).start()

    def now(self) -> float:
        return time.monotonic() - self._lost_s

    def _run(self) -> None:
        while True:
            before = time.monotonic()
            time.sleep(AWAKE_EVERY_S)
            late_s = time.monotonic() - before - AWAKE_EVERY_S
            if late_s > AWAKE_EVERY_S:
                self._lost_s += late_s


@dataclass
class Outcome(chaos.Outcome):
    """`committed` and `refused` count transactions; `aborted`: records of output that no reader of committed records sees; `hung`:
    workers whose librdkafka hung (`pipeline_worker.HUNG`). `kept`: how many records of the group's partition compaction has left, of
    how many."""

    acts: Counter[str] = field(default_factory=Counter)
    kept: tuple[int, int] = (0, 0)
    committed: int = 0
    refused: int = 0
    aborted: int = 0
    generations: int = 0
    progress_s: float = 0.0
    hung: int = 0

    def __str__(self) -> str:
        return (
            f"{super().__str__()}\n\n{self.committed} transactions committed, {self.refused} refused or unknown, {self.aborted} records "
            f"of output aborted; {self.generations} generations; each worker committed {self.progress_s:.1f} s after the last fault; "
            f"{self.hung} clients hung; {', '.join(f'{name} {count} times' for name, count in self.acts.most_common())}; compaction kept "
            f"{self.kept[0]} of {self.kept[1]} records of the group's partition"
        )


def run(cluster: LocalCluster, seed: int, rounds: int, kinds: Mapping[str, Kind] = KINDS) -> Outcome:
    """Makes the topics on a running cluster, then `rounds` faults. Raises AssertionError, ClusterError, TimeoutError."""
    print(f"pipeline chaos: seed {seed}, {rounds} rounds", flush=True)
    log = chaos.FaultLog()
    outcome = Outcome(seed)
    own_time = OwnTime()
    victims = ProcessCluster(cluster)
    create_topics(
        cluster.bootstrap_servers,
        NewTopic(INPUT, PARTITIONS, 3, config=SMALL_SEGMENTS),
        NewTopic(OUTPUT, PARTITIONS, 3, config=SMALL_SEGMENTS),
        NewTopic(SIDE, REMADE_PARTITIONS_MAX, 3),
        NewTopic(FLEETING_INPUT, REMADE_PARTITIONS_MAX, 3),
    )
    with healed(victims), ExitStack() as stack:
        output_reader = CommittedReader(cluster.bootstrap_servers, OUTPUT, PARTITIONS)
        stack.callback(output_reader.close)
        producer = stack.enter_context(chaos.producer_of(cluster, INPUT, PARTITIONS, RECORDS_PER_S, log.began))
        workers = stack.enter_context(WorkerProcesses(cluster, GROUP, INPUT, OUTPUT, PARTITIONS, SIDE, IDS))
        fleeting = stack.enter_context(
            WorkerProcesses(
                cluster, FLEETING_GROUP, FLEETING_INPUT, OUTPUT, PARTITIONS, SIDE, FLEETING_IDS, kind=FLEETING
            )
        )
        world = _World(cluster, workers, fleeting, output_reader, own_time, log)
        stack.enter_context(FleetingLoad(cluster.bootstrap_servers, world.fleeting, FLEETING_RECORDS_PER_S))
        stack.callback(world.history.close)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        world.wait_progress(since=log.began, timeout_s=STALLED_S)
        for fault, act in zip(schedule(seed, rounds, cluster.broker_ids, kinds), acts(seed, rounds), strict=True):
            print(f"{time.strftime('%T')} {fault}{act.name and f'; {act.name}'}", flush=True)
            outcome.kinds[fault.name] += 1
            outcome.acts.update([act.name] if act.name else [])
            since = time.monotonic()
            acting = pool.submit(world.carry_out, act)
            world.play(fault)
            acting.result(2 * DONE_S)
            if fault.then == "acknowledgements":
                world.wait_progress(since=since, timeout_s=STALLED_S)
            elif fault.then == "full ISRs":
                chaos.wait_in_sync(world.roles, TOPICS)
            chaos.assert_all_run(cluster)
            chaos.assert_none_failed(producer)
            world.assert_offsets()
        over, own_over = time.monotonic(), own_time.now()
        cluster.wait_ready()
        world.wait_progress(since=over, timeout_s=PROGRESS_S + LONGEST_HANG_S)
        outcome.progress_s = own_time.now() - own_over
        world.wait_fleeting(since=over, timeout_s=PROGRESS_S + LONGEST_HANG_S)
        outcome.hung = workers.hung() + fleeting.hung()
        if not outcome.hung:
            assert outcome.progress_s < PROGRESS_S, f"every worker commits only after {outcome.progress_s:.1f} s"
        chaos.wait_in_sync(world.roles, TOPICS)
        outcome.converged_s = own_time.now() - own_over
        producer.stop()
        starts, ends = (
            bounds(cluster, {INPUT: PARTITIONS}, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        # Of a partition whose records were all deleted, nothing can be committed.
        wanted = {partition: end for (topic, partition), end in ends.items() if end > starts[topic, partition]}
        world.wait_no_lag(wanted)
        world.assert_offsets()
        workers.close()
        fleeting.close()
        _judge(world, outcome)
        client, _ = client_of(producer, log.now(), world.consumed)
        # `Evidence` knows what was deleted before anybody read it.
        outcome.verdict = assert_clean(
            [client], log.faults, allowed=[UNSEEN, UNRECOVERED], end=log.now(), may_be_deleted=True
        )
    chaos.assert_no_tracebacks(cluster)
    outcome.seconds = log.now()
    return outcome


class _World:
    """The workers, and what can be asked of the cluster at any time."""

    def __init__(
        self,
        cluster: LocalCluster,
        workers: WorkerProcesses,
        fleeting_workers: WorkerProcesses,
        output_reader: CommittedReader,
        own_time: OwnTime,
        log: chaos.FaultLog,
    ) -> None:
        self.own_time, self.log = own_time, log
        self.cluster, self.workers, self.fleeting_workers = cluster, workers, fleeting_workers
        self.output_reader = output_reader
        self.side, self.fleeting = Remade(SIDE), Remade(FLEETING_INPUT)
        victims = ProcessCluster(cluster)
        self.roles = Roles(victims)
        self.history = LogHistory(cluster, self.roles, OFFSETS_TOPIC, partition_for(GROUP, COORDINATED_PARTITIONS))
        self.floor: dict[int, int] = {}
        """Partition -> its highest offset in a transaction whose commit was acknowledged."""
        self.deletions = Deletions(
            cluster,
            {INPUT: PARTITIONS, OUTPUT: PARTITIONS},
            self.side,
            self.fleeting,
            output_reader,
            lambda: dict(self.floor),
        )
        partitions = [f"{topic}-{number}" for topic in (INPUT, OUTPUT) for number in range(PARTITIONS)]
        partitions += [
            f"{t}-{n}" for t in (OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC) for n in range(COORDINATED_PARTITIONS)
        ]
        self._plays = {
            key: Rounds(victims, log.faulted(victims), partitions, keys, log.add)
            for key, keys in {
                "transaction-coordinator": [i for i in (*IDS, *FLEETING_IDS) if "*" not in i],
                "": [GROUP, FLEETING_GROUP],
            }.items()
        }

    def play(self, fault: Round) -> None:
        if fault.kind.role == "member":
            running = [*self.workers.running, *self.fleeting_workers.running]
            worker = running[int(fault.pick * len(running))]
            self.log.add_now(fault.kind.action, f"{MEMBER}{worker.name}")
            inject(fault.kind.action, [worker], fault.seconds)
        else:
            self._plays.get(fault.kind.role, self._plays[""]).play(fault)

    def consumed(self, ids: Ids) -> list[Report]:
        """A record of the input is consumed when a reader of committed records gets it from the output."""
        reader = self.output_reader
        found = []
        for at, value in reader.values.items():
            if not value.startswith(FLEETING_MARK):
                place = partition, offset = parsed(value)
                id_, seconds = ids.get(place, ""), reader.times[at] - self.log.began
                found.append(Report(CONSUMED, INPUT, partition, offset, id_, GROUP, at=seconds))
        return found

    def eventually(self, check: Callable[[], Any], what: str, timeout_s: float = STALLED_S) -> None:
        eventually(check, what, timeout_s, self.own_time.now)

    def carry_out(self, act: Act) -> None:
        done = self.deletions.carry_out(act)
        if done:
            print(f"    {act.name}: {done}", flush=True)

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

        self.eventually(lambda: Compared(missing(), []), "every worker commits a transaction", timeout_s)

    def wait_no_lag(self, wanted: Mapping[int, int]) -> None:
        """Waits until the committed offsets are the wanted ones. A backlog may be long, but something of it is committed all the time."""
        furthest: dict[int, int] = dict.fromkeys(wanted, -1)

        def stands_where() -> dict[int, int] | None:
            """The partitions with lag, at what is committed; None: it has just moved."""
            before = dict(furthest)
            for of_broker in self.committed():
                furthest.update({p: max(at, furthest[p]) for p, at in of_broker.items() if p in wanted})
            return {p: at for p, at in furthest.items() if at < wanted[p]} if before == furthest else None

        while stands_where() != {}:
            self.eventually(
                lambda: stands_where() in (None, {}), "a commit of those that lag", PROGRESS_S + LONGEST_HANG_S
            )
        assert furthest == dict(wanted), f"committed: {furthest}, the input ends at {wanted}"

    def wait_fleeting(self, since: float, timeout_s: float) -> None:
        """Waits until a worker of the fleeting input committed a transaction that it began after `since`: it may have one partition."""

        def has_committed() -> bool:
            self.fleeting_workers.replace_ended()
            lines = [line for worker in self.fleeting_workers.running for line in worker.journal.read()]
            return any(line["what"] == "committed" and line["since"] > since for line in lines)

        self.eventually(has_committed, "a worker of the fleeting input commits a transaction", timeout_s)

    def assert_offsets(self) -> None:
        """INV-23: whoever answers as the coordinator has what was committed before the question."""
        for worker in [*self.workers.all, *self.fleeting_workers.all]:
            worker.journal.read()
            for line in worker.journal.lines:
                assert line["what"] != "failed", f"{worker.name}: {line['error']}"
            assert worker.exit_code() in (None, 0, HUNG, STALE, -signal.SIGKILL), (
                f"{worker.name} ended: {worker.exit_code()}"
            )
        for worker in self.workers.all:
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
            answer = ask(address, ANSWER_TIMEOUT_S, ApiKey.OFFSET_FETCH, 8, body)
            if answer is not None and not answer.groups[0].error_code:
                partitions = [p for topic in answer.groups[0].topics for p in topic.partitions]
                found.append({int(p.partition_index): int(p.committed_offset) for p in partitions if not p.error_code})
        return found


def bounds(
    cluster: LocalCluster,
    topics: Mapping[str, int],
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[tuple[str, int], int]:
    """(topic, partition) -> the log start (earliest) or end (latest); the end is the last stable offset, or, for readers of uncommitted
    records, the high watermark."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    wanted = {TopicPartition(topic, n): spec for topic, count in topics.items() for n in range(count)}
    answers = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=30)
    return {(at.topic, at.partition): future.result(30).offset for at, future in answers.items()}


def _judge(world: _World, outcome: Outcome) -> None:
    """Into the outcome. Raises AssertionError, TimeoutError."""
    cluster, deletions = world.cluster, world.deletions
    _assert_all_transactions_end(world)
    counts = {INPUT: PARTITIONS, OUTPUT: PARTITIONS, SIDE: world.side.partitions}
    starts = bounds(cluster, counts, OffsetSpec.earliest())
    ends = bounds(cluster, counts, OffsetSpec.latest())
    world.output_reader.wait_for({p: end for (topic, p), end in ends.items() if topic == OUTPUT}, STALLED_S)
    assert world.output_reader.problems == []
    for partition, offset in deletions.cut_for_sure.items():
        start = starts[INPUT, partition]
        assert offset <= start <= deletions.cut_to[partition], (
            f"{INPUT}-{partition} begins at {start}, was cut at {offset}"
        )
    side, is_all = read_to_end(cluster.bootstrap_servers, SIDE, world.side.partitions, STALLED_S)
    assert is_all, f"{SIDE} was not read in {STALLED_S:g} s"
    journals = [worker.journal for worker in world.workers.all]
    for journal in journals:
        journal.read()
        outcome.committed += sum(1 for _ in journal.commits())
        outcome.refused += sum(line["what"] == "refused" for line in journal.lines)
    evidence = Evidence(
        starts={p: max(starts[INPUT, p], deletions.cut_to.get(p, 0)) for p in range(PARTITIONS)},
        ends={p: end for (topic, p), end in ends.items() if topic == INPUT},
        output=world.output_reader.values,
        side=[*deletions.side, side],
        disturbed_until=deletions.disturbed_until,
        lines=[line for journal in journals for line in journal.lines],
        fleeting_last=fleeting_mark(world.fleeting),
    )
    problems = evidence.problems()
    assert not problems, "; ".join(problems)
    outcome.aborted = _aborted_records(world, starts)
    with closing(ZooKeeperView(cluster.zookeeper_connect)) as zk:
        for topic in (INPUT, OUTPUT, SIDE, FLEETING_INPUT):
            of_topic = {p: start for (name, p), start in starts.items() if name == topic}
            assert_healed(cluster, zk, topic, of_topic)
        outcome.kept = _assert_compacted_alike(world, zk)
    log = read_group_log(world.history.data)
    outcome.generations = assert_one_owner(log, journals)
    assert_commits_never_go_back(log, journals)


def _assert_all_transactions_end(world: _World) -> None:
    """No transaction is open; the last stable offset is the high watermark everywhere; each transactional id gets a producer id."""
    cluster, counts = world.cluster, {INPUT: PARTITIONS, OUTPUT: PARTITIONS, SIDE: world.side.partitions}
    counts |= {FLEETING_INPUT: world.fleeting.partitions} | dict.fromkeys(INTERNAL, COORDINATED_PARTITIONS)
    world.eventually(lambda: Compared(_open_transactions(cluster), []), "no open transaction", PROGRESS_S)
    world.eventually(
        lambda: Compared(
            bounds(cluster, counts, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
            bounds(cluster, counts, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
        ),
        "each last stable offset is the high watermark",
        PROGRESS_S,
    )
    for transactional_id in [*world.workers.ids, *world.fleeting_workers.ids]:
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

        world.eventually(is_free, f"{transactional_id} gets a producer id", FREE_S)


def _aborted_records(world: _World, starts: Mapping[tuple[str, int], int]) -> int:
    """Records of the output that are there, and that no reader of committed records gets."""
    uncommitted, is_all = read_to_end(
        world.cluster.bootstrap_servers, OUTPUT, PARTITIONS, STALLED_S, isolation="read_uncommitted"
    )
    assert is_all, f"{OUTPUT} was not read in {STALLED_S:g} s"
    committed = {at: value for at, value in world.output_reader.values.items() if at[1] >= starts[OUTPUT, at[0]]}
    different = {at: (value, uncommitted.get(at)) for at, value in committed.items() if uncommitted.get(at) != value}
    assert not different, f"place -> (read before, read now): {dict(list(different.items())[:5])}"
    return len(uncommitted) - len(committed)


def _assert_compacted_alike(world: _World, zk: ZooKeeperView) -> tuple[int, int]:
    """On all replicas of the internal topics, the latest value of each key is the same, and of the group's partition that of its history.

    Returns how many records compaction has left of it, and how many there were.
    """
    history = world.history
    end = bounds(world.cluster, {OFFSETS_TOPIC: COORDINATED_PARTITIONS}, OffsetSpec.latest())
    number = partition_for(GROUP, COORDINATED_PARTITIONS)
    world.eventually(lambda: history.next_offset >= end[OFFSETS_TOPIC, number], "the history is whole", PROGRESS_S)
    assert history.gaps == [], "what was compacted before it was read is not judged"
    for topic in INTERNAL:
        assert_known_alike(world.cluster, zk, topic)
        wait_full_isr(zk, topic)
        for partition, assignment in zk.assignment(topic).items():
            wanted = latest_values(history.data) if (topic, partition) == (OFFSETS_TOPIC, number) else None

            def differing(
                at: tuple[str, int] = (topic, partition),
                brokers: tuple[int, ...] = tuple(assignment.replicas),
                wanted: dict[bytes, bytes] | None = wanted,
            ) -> dict[int, list[bytes]]:
                """Broker -> keys that have another value there."""
                found = {b: latest_values(*segments_of(replica_directory(world.cluster, b, *at))) for b in brokers}
                right = found[brokers[0]] if wanted is None else wanted
                keys = {
                    b: [k for k in values.keys() | right.keys() if values.get(k) != right.get(k)]
                    for b, values in found.items()
                }
                return {b: some[:5] for b, some in keys.items() if some}

            world.eventually(
                lambda: Compared(differing(), {}), f"the replicas of {topic}-{partition} have the same values"
            )
    leader = zk.state(OFFSETS_TOPIC, number).leader
    kept = segments_of(replica_directory(world.cluster, leader, OFFSETS_TOPIC, number))
    return sum(map(record_count, kept)), record_count(history.data)


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


def segments_of(replica: Path) -> list[bytes]:
    """In the order of the log; none while the cleaner replaces some of them."""
    try:
        return [segment.read_bytes() for segment in sorted(replica.glob("*.log"))]
    except FileNotFoundError:
        return []


def record_count(data: bytes | bytearray) -> int:
    return sum(header.record_count for _, header in iter_batches(memoryview(data)))


def read_group_log(history: bytes | bytearray) -> GroupLog:
    """What this history of its partition has of the group. Its commits are where the markers are that commit them.

    A transaction may have the same offset twice: a client that was not answered sends it again, perhaps to the next coordinator.
    """
    log = GroupLog()
    pending: dict[int, dict[int, CommittedOffset]] = defaultdict(dict)
    data = memoryview(history)
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
    assert not pending, f"offsets without a marker, of the producers {sorted(pending)}"
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
