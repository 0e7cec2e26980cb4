"""One simulated history: builds the world, lets it run with its faults, waits until it is at rest, and judges (docs/SIMULATION.md)."""

from __future__ import annotations

import hashlib
import importlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from broker.coordination.ownership import partition_for
from protocol.kafka.api_keys import ApiLevel
from protocol.types import TopicPartition
from protocol.zk.znodes import BrokerIdZNode
from tools.sim import plan as plans
from tools.sim.clients.admin import FLEETING, FLEETING_PARTITIONS, Admin
from tools.sim.clients.fleeting_reader import FleetingReader
from tools.sim.clients.group_member import GroupMember
from tools.sim.clients.history import History
from tools.sim.clients.new_member import NewMember
from tools.sim.clients.onlooker import Onlooker
from tools.sim.clients.processor import Processor
from tools.sim.clients.producer import Producer
from tools.sim.clients.reader import Reader
from tools.sim.clients.transactional_producer import TransactionalProducer
from tools.sim.faults import Faults
from tools.sim.invariants import Invariants
from tools.sim.judging import LOG_TOPICS, Processed, Scene, problems_of, unrest
from tools.sim.plan import API_LEVEL, BROKERS, SETTINGS, Plan
from tools.sim.policies import COMPACTS, KEEPS_ALL, Policy, policy_of
from tools.sim.truth import TornLog, committed_in, is_left_out, segments_on, states_in, visible_in
from tools.sim.world.controlled import controlled
from tools.sim.world.event_loop import NumberingLoop, ProcessLoop
from tools.sim.world.network import Network
from tools.sim.world.nodes import CLIENT_PORT, LOG_DIRS, BrokerNode
from tools.sim.world.scheduler import START_S, WALL_START_S, Scheduler
from tools.sim.world.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from tools.sim.clients.aiokafka_clients import AiokafkaReader

START_LIMIT_S = 30.0
REST_LIMIT_S = 120.0
"""After the last fault is undone, everything must have converged within this virtual time."""
LOOK_S = 0.5
EVENTS_MAX = 100_000
"""While something is waited for: a cluster that does so much has brokers that ask for the same again and again."""
PROCESSORS = "processors"
"""Their group."""
OUTPUT, OUTPUTS = "output", 2
"""Their topic, and the number of its partitions."""
FLEETING_READERS = 2


class Client(Protocol):
    """A simulated client. A reader goes on until all is read."""

    name: str
    is_reader: bool

    def stop(self) -> None: ...

    async def run(self) -> None: ...


@dataclass
class Outcome:
    """What a history ended with. `problems` is empty if all is well. `digest`: of all events, the same for the same seed."""

    seed: int
    problems: list[str]
    digest: str
    virtual_s: float
    cpu_s: float
    events_run: int
    counts: Counter[str]
    story: dict[int, list[str]] = field(default_factory=dict)
    """The event log of each broker, as lines of JSON."""


class Simulation:
    """The world of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.scheduler = Scheduler(Random(f"world {plan.seed}"))
        self._digest = hashlib.sha256()
        self.story: dict[int, list[str]] = {broker: [] for broker in (0, *BROKERS)}
        self.network = Network(self.scheduler, self._record)
        self.zookeeper = ZooKeeper(self.network, self._record)
        settings = self._settings = {**SETTINGS, **plan.settings}
        self.nodes = {
            broker: BrokerNode(
                broker, self.scheduler, self.network, self.zookeeper, settings, self._event, plan.log_dirs
            )
            for broker in BROKERS
        }
        self._policies = policies_of(plan)
        truncating = frozenset(topic for topic, policy in self._policies.items() if policy.deletes)
        level = ApiLevel(settings[API_LEVEL])
        self.history = History(self.scheduler, self._is_led_by, level=level, truncating=truncating)
        self.invariants = Invariants(
            self.zookeeper.tree,
            self.nodes,
            self.history.break_promise,
            min_insync=int(settings["min.insync.replicas"]),
            removing=self._policies,
            syncs=settings.get("log.flush.interval.messages") == "1",
        )
        self.zookeeper.on_change = self.invariants.changed
        self.history.batch_acknowledged = self.invariants.acknowledged
        self.history.batch_read = self.invariants.read
        self.history.commit_acknowledged = lambda group, tp, offset: self.invariants.commit_acknowledged(
            self._log_of_group(group), group, tp, offset
        )
        self.history.is_unaware = self._is_unaware
        self.history.is_compacted_away = self._is_compacted_away
        self.history.decision_told = lambda transactional_id, instance: self.invariants.decision_told(
            self._log_of_transactions(transactional_id), transactional_id, instance
        )
        for node in self.nodes.values():
            node.before_cut, node.before_rename = self.invariants.log_is_cut, self.invariants.log_goes
            node.after_power_loss, node.may_lose = self.invariants.power_was_lost, self.invariants.may_lose
        self.problems: list[str] = []
        self._clients: list[Client] = []
        self._aiokafka: list[AiokafkaReader] = []
        self._running: list[Any] = []
        self._partitions = [
            TopicPartition(name, number) for name, count in plan.partitions.items() for number in range(count)
        ]
        self._outputs = [TopicPartition(OUTPUT, number) for number in range(OUTPUTS * (plan.processors > 0))]
        self._faults = Faults(
            self.scheduler,
            self.network,
            self.zookeeper,
            self.nodes,
            self._aims(),
            self._fault_done,
            self.invariants.disk_is_empty,
        )

    def _fault_done(self, kind: str, fields: dict[str, Any]) -> None:
        self._event(0, int((WALL_START_S - START_S + self.scheduler.now) * 1000), kind, fields)

    def _aims(self) -> dict[int, TopicPartition]:
        """Whose leaders faults may aim at."""
        return {
            plans.LEADER: self._partitions[0],
            plans.GROUP_COORDINATOR: self._log_of_group(plans.GROUP),
            plans.TRANSACTION_COORDINATOR: self._log_of_transactions(plans.TRANSACTIONAL_ID),
        }

    def _log_of_group(self, group: str) -> TopicPartition:
        """The partition of its coordinator."""
        return TopicPartition(LOG_TOPICS[0], partition_for(group, int(self._settings["offsets.topic.num.partitions"])))

    def _is_unaware(self, group: str, host: str) -> bool:
        """If the leadership was moved while its session lives, and it cannot be reached, it answers from memory, here as in Kafka."""
        state = states_in(self.zookeeper.tree).get(self._log_of_group(group))
        node = self._node_of(host)
        if state is None or node is None or state.leader == node.id:
            return False
        return BrokerIdZNode.path(node.id) in self.zookeeper.tree.nodes

    def _log_of_transactions(self, transactional_id: str) -> TopicPartition:
        number = partition_for(transactional_id, int(self._settings["transaction.state.log.num.partitions"]))
        return TopicPartition(LOG_TOPICS[1], number)

    # -- the record ---------------------------------------------------------------------------------------------------

    def _record(self, what: str, *details: Any) -> None:
        shown = [crc32(detail) if isinstance(detail, bytes) else detail for detail in details]
        self._digest.update(f"{self.scheduler.now:.9f} {what} {shown}\n".encode())

    def _event(self, broker: int, wall_ms: int, kind: str, fields: dict[str, Any]) -> None:
        line = json.dumps({"time_ms": wall_ms, "kind": kind, **fields}, default=str)
        self.story[broker].append(line)
        self._digest.update(f"{self.scheduler.now:.9f} {broker} {line}\n".encode())

    # -- a history ----------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        began = time.process_time()
        with controlled(self.scheduler, self.plan.seed, self.plan.sent_from_file, self.plan.producer_epochs):
            if self._start():
                self._load()
                if self._rest() and not self.scheduler.is_stopped:  # logs that are not at rest tell nothing
                    self._judge()
                self.problems += self.history.broken
                for node in self.nodes.values():
                    self.problems += node.failures
                    self.problems += node.loop.uncaught() if node.loop is not None else []
        events = self.history.counts
        seconds = self.scheduler.now - START_S
        cpu_s = time.process_time() - began
        digest = self._digest.hexdigest()[:16]
        return Outcome(
            self.plan.seed, self.problems, digest, seconds, cpu_s, self.scheduler.events_run, events, self.story
        )

    def _start(self) -> bool:
        for node in self.nodes.values():
            node.start()
        self._until(
            lambda: all(node.is_ready for node in self.nodes.values()), START_LIMIT_S, "the start of the brokers"
        )
        if not self.problems:
            made = self._in_process("creator", self._admin("creator", creates=True).create())
            self._until(made.done, START_LIMIT_S, "the creation of the topics")
        return not self.problems

    def _load(self) -> None:
        partitions = self._partitions
        deleting = frozenset(topic for topic, policy in self._policies.items() if policy.has_tombstones)
        for number in range(self.plan.producers):
            name = f"producer{number}"
            producer = Producer(
                name, self._bootstrap(), partitions, self._random(name), self.history, deleting, pauses=self.plan.pauses
            )
            self._begin(name, producer)
        for number in range(self.plan.readers):
            name = f"reader{number}"
            self._begin(
                name, Reader(name, self._bootstrap(), [*partitions, *self._outputs], self._random(name), self.history)
            )
        for number in range(self.plan.transactional):
            name = f"transactional{number}"
            self._begin_transactional(name, name, is_alone=number >= self.plan.second_instances)
        for number in range(self.plan.second_instances):
            self._begin_transactional(f"second{number}", f"transactional{number}", is_alone=False)
        for number in range(self.plan.members):
            name = f"member{number}"
            self._begin(
                name, GroupMember(name, plans.GROUP, self._bootstrap(), partitions, self._random(name), self.history)
            )
        for number in range(self.plan.new_members):
            name = f"new-member{number}"
            self._begin(
                name, NewMember(name, plans.GROUP, self._bootstrap(), partitions, self._random(name), self.history)
            )
        if self.plan.members or self.plan.new_members:
            self._begin(
                "onlooker",
                Onlooker(
                    "onlooker", plans.GROUP, self._bootstrap(), partitions, self._random("onlooker"), self.history
                ),
            )
        for number in range(self.plan.processors):
            self._begin_processor(f"processor{number}")
        if self.plan.aiokafka:
            self._begin_aiokafka(self.plan.aiokafka)
        if self.plan.has_admin:
            self._begin("admin", self._admin("admin"))
        for number in range(FLEETING_READERS * self.plan.remakes):
            name = f"fleeting-reader{number}"
            self._begin(name, FleetingReader(name, self._bootstrap(), FLEETING, self._random(name), self.history))
        if self.plan.log_dirs > 1:
            self._faults.mend_disks()
        began = self.scheduler.now
        for fault in self.plan.faults:
            self.scheduler.call_at(began + fault.at, self._faults.do, fault)
        self.scheduler.run(began + self.plan.seconds)

    def _begin_transactional(self, name: str, transactional_id: str, *, is_alone: bool) -> None:
        fleeting = [TopicPartition(topic, number) for topic in FLEETING for number in range(FLEETING_PARTITIONS)]
        producer = TransactionalProducer(
            name,
            self._bootstrap(),
            self._partitions,
            self._random(name),
            self.history,
            transactional_id=transactional_id,
            fleeting=fleeting if self.plan.remakes else (),
            pauses=self.plan.pauses,
            is_alone=is_alone,
        )
        self._begin(name, producer)

    def _begin_processor(self, name: str) -> None:
        random = self._random(name)
        processor = Processor(
            name,
            PROCESSORS,
            self._bootstrap(),
            self._partitions,
            self._outputs,
            random,
            self.history,
            is_old=self.plan.processors == 1 and random.random() < 0.5,
        )
        self._begin(name, processor)

    def _begin_aiokafka(self, count: int) -> None:
        from tools.sim.clients.aiokafka_clients import (  # the library may be absent where no plan wants it
            AiokafkaProducer,
            AiokafkaReader,
        )

        common = (self._bootstrap(), self._partitions)
        for number in range(count):
            name = f"aiokafka-producer{number}"
            producer = AiokafkaProducer(
                name, *common, self._random(name), self.history, is_transactional=number % 2 == 1
            )
            self._begin(name, producer, NumberingLoop)
        for number in range(count + 1):
            name = f"aiokafka-reader{number}"
            reader = AiokafkaReader(name, *common, self._random(name), self.history, is_member=number < count)
            self._aiokafka.append(reader)
            self._begin(name, reader, NumberingLoop)

    def _begin(self, name: str, client: Client, loop: type[ProcessLoop] = ProcessLoop) -> None:
        self._clients.append(client)
        self._running.append(self._in_process(name, client.run(), loop))

    def _in_process(self, name: str, work: Any, loop: type[ProcessLoop] = ProcessLoop) -> Any:
        return loop(self.scheduler, self.network.host(name), name).create_task(work)

    def _admin(self, name: str, *, creates: bool = False) -> Admin:
        plan = self.plan
        return Admin(
            name,
            self._bootstrap(),
            {**plan.partitions, **{tp.topic: OUTPUTS for tp in self._outputs}} if creates else plan.partitions,
            plan.replicas,
            BROKERS,
            self._random(name),
            self.history,
            plan.configs,
            remakes=plan.remakes,
            log_dirs=LOG_DIRS[: plan.log_dirs],
            pauses=plan.pauses,
        )

    def _random(self, name: str) -> Random:
        return Random(f"{name} {self.plan.seed}")

    def _bootstrap(self) -> list[tuple[str, int]]:
        return [(node.name, CLIENT_PORT) for node in self.nodes.values()]

    def _is_led_by(self, tp: TopicPartition, host: str) -> bool:
        state = states_in(self.zookeeper.tree).get(tp)
        return state is not None and host == f"broker-{state.leader}"

    def _is_compacted_away(self, tp: TopicPartition, batch: bytes, host: str) -> bool:
        policy, node = self._policies.get(tp.topic), self._node_of(host)
        return (
            policy is not None
            and policy.compacts
            and node is not None
            and is_left_out(segments_on(node.disk, tp), batch)
        )

    def _node_of(self, host: str) -> BrokerNode | None:
        return next((node for node in self.nodes.values() if node.name == host), None)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _rest(self) -> bool:
        """Ends all faults and the load, and waits until nothing is left to do. False: it waits for a person, and the story ends here."""
        self._faults.undo_all()
        for client in self._clients:
            if not client.is_reader:
                client.stop()
            elif isinstance(client, GroupMember):
                client.settle()
        person = self.invariants.left_to_a_person
        self._until(lambda: self._is_at_rest() or bool(person()), REST_LIMIT_S, "rest")
        if left := person():
            self.history.counts["partitions left to a person"] += len(left)
            return False
        for client in self._clients:
            client.stop()
        self._until(lambda: all(task.done() for task in self._running), REST_LIMIT_S, "the end of the clients")
        self._until(lambda: not unrest(self._scene()), REST_LIMIT_S, "the end of the last transactions")
        return True

    def _is_at_rest(self) -> bool:
        return self._what_is_missing() == ""

    def _what_is_missing(self) -> str:
        for node in self.nodes.values():
            if not node.is_ready:
                return f"broker {node.id} does not serve: {node.failure or 'it is starting'}"
        for client, task in zip(self._clients, self._running, strict=True):
            if task.done() and task.exception() is not None:
                return f"a client has failed: {task.exception()!r}"
            if not client.is_reader and not task.done():
                return f"{client.name} has not ended"
        scene = self._scene()
        missing = unrest(scene) or self._old_metadata(scene)
        if missing:
            return missing
        for client in self._clients:
            if isinstance(client, Reader) and not isinstance(client, GroupMember):
                for tp, position in client.positions.items():
                    end = scene.end(scene.states[tp].leader, tp)
                    if position < end:
                        return f"{client.name} has read {tp} up to {position} of {end}"
        for group in (plans.GROUP, PROCESSORS):
            members = [one for one in self._clients if isinstance(one, GroupMember) and one.group == group]
            if members and self._is_unread(members, scene):
                return f"the group {group} has not read everything"
        return self._what_aiokafka_has_not_read(scene)

    def _what_aiokafka_has_not_read(self, scene: Scene) -> str:
        """Its positions say nothing about markers and aborted records: what counts is the last record that it may see."""
        if not self._aiokafka:
            return ""
        members = [reader for reader in self._aiokafka if reader.is_member]
        for tp in self._partitions:
            batches = scene.log(tp)
            last = max((offset for batch in batches for offset in batch.ids), default=-1)
            if all(member.positions[tp] <= last for member in members):
                return f"the group of aiokafka has not read {tp} up to {last}"
            last = max((offset for offset, _ in visible_in(batches).records), default=-1)
            for reader in self._aiokafka:
                if not reader.is_member and reader.positions[tp] <= last:
                    return f"{reader.name} has read {tp} up to {reader.positions[tp]}, and {last} is committed"
        return ""

    def _old_metadata(self, scene: Scene) -> str:
        """INV-27: every broker knows of every partition what ZooKeeper has."""
        for node in self.nodes.values():
            metadata = node.broker._metadata if node.broker is not None else None
            for tp, state in scene.states.items():
                known = metadata.partition(tp) if metadata is not None else None
                if known is None or (known.leader, known.leader_epoch, known.isr) != state[:3]:
                    return f"broker {node.id} has {known} in its metadata, and {tp} is {state}"
        return ""

    def _is_unread(self, members: Sequence[GroupMember], scene: Scene) -> bool:
        """Between all members, each partition is read to its end by its owner."""
        read = {tp: max(member.positions.get(tp, 0) for member in members) for tp in self._partitions}
        return any(position < scene.end(scene.states[tp].leader, tp) for tp, position in read.items())

    def _scene(self) -> Scene:
        return Scene.of(self.zookeeper.tree, list(self.nodes.values()))

    def _until(self, is_reached: Callable[[], bool], limit_s: float, what: str) -> None:
        """Runs the world until that is reached. A log that cannot be read ends it, and is judged."""
        deadline = self.scheduler.now + limit_s
        last_event = self.scheduler.events_run + EVENTS_MAX
        try:
            while not is_reached() and not self.scheduler.is_stopped:
                has_spun = self.scheduler.events_run > last_event
                if has_spun or self.scheduler.now >= deadline:
                    missing = self._what_is_missing() if what == "rest" else ""
                    limit = f"{EVENTS_MAX} events" if has_spun else f"{limit_s:g} s"
                    self.problems.append(f"not within {limit}: {what}{': ' * bool(missing)}{missing}")
                    return
                self.scheduler.run(self.scheduler.now + LOOK_S)
        except TornLog as torn:
            self.problems.append(f"while waiting for {what}: {torn}")

    # -- the judge ----------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        try:
            scene = self._scene()
        except TornLog as torn:
            self.problems.append(f"INV-21: {torn}")
            return
        self._count_removed(scene)
        partitions = [*self._partitions, *self._outputs]
        processed = Processed(PROCESSORS, self._outputs) if self._outputs else None
        if processed is not None:
            scene.committed = self._committed(scene)
        self.problems += problems_of(scene, self.history, partitions, self._policies, processed)

    def _committed(self, scene: Scene) -> dict[tuple[str, TopicPartition], int]:
        """By the log of the group's coordinator."""
        tp = self._log_of_group(PROCESSORS)
        state = scene.states.get(tp)
        if state is None or state.leader not in self.nodes:
            return {}
        return committed_in(segments_on(self.nodes[state.leader].disk, tp))

    def _count_removed(self, scene: Scene) -> None:
        for tp in self._partitions:
            policy = self._policies.get(tp.topic, KEEPS_ALL)
            if not policy.keeps_all:
                there = {record for batch in scene.log(tp) for record in batch.ids.values()}
                gone = sum(record not in there for _, record in self.history.acknowledged_in(tp))
                self.history.counts["compacted away" if policy.compacts else "deleted by retention"] += gone


def policies_of(plan: Plan) -> dict[str, Policy]:
    """Of the topics from which compaction or retention removes records."""
    found = {topic: policy_of(configs) for topic, configs in plan.configs.items()}
    if any(key in plan.settings for key in plans.SMALL_SEGMENTS):
        found |= dict.fromkeys(LOG_TOPICS, COMPACTS)
    return found


def run(plan: Plan, mutant: str = "") -> Outcome:
    """Runs that plan in this process, which must end afterwards (`tools.sim.worker`)."""
    if mutant:
        module, _, name = mutant.partition(":")
        getattr(importlib.import_module(module), name)(SimpleNamespace(setattr=setattr))
    return Simulation(plan).run()
