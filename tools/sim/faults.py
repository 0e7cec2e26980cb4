"""Does the faults of a plan to the world, and undoes them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from broker.storage import checkpoints
from broker.storage.directories.log_directory import CLEAN_SHUTDOWN
from protocol.kafka.record_batch import iter_batches
from protocol.types import NO_LEADER, LeaderAndIsr, TopicPartition
from protocol.zk.znodes import PreferredElectionZNode, ReassignPartitionsZNode
from tools.sim import plan as plans
from tools.sim.plan import Fault
from tools.sim.truth import LOG_NAME, assignments_in, controller_in, states_in
from tools.sim.world.disk import Inode, MemoryDisk
from tools.sim.world.event_loop import THREAD_S
from tools.sim.world.network import Network
from tools.sim.world.nodes import LOG_DIRS, BrokerNode
from tools.sim.world.scheduler import Scheduler
from tools.sim.world.zookeeper import ZooKeeper

START_AGAIN_S = 0.5
MEND_S = 3.0
"""How often somebody looks for brokers that have lost a log directory."""
RUNS_S = (0.5, 5.0)
"""Between the two ends of RESTART_AND_POWER."""
SLOW_DISK_S = 0.3
SLOW_LINKS_S = (0.03, 0.3, 1.0)
"""With the last one, requests come after their sender has given them up."""
SLOW_BROKERS_S = (0.03, 0.1, 0.3)
FAILING_CALLS = (
    ("sync",),
    ("write",),
    ("write", "sync", "sync_directory"),
    ("read", "read_file"),
    ("read", "read_file", "write", "sync", "truncate", "rename", "remove", "make_directory", "sync_directory"),
)
JUMPS_S = (0.0, 5.0, -5.0, 3500.0, -3500.0, 40_000.0)
"""Not an hour back: then a leader refuses the records of clients as too far in the future (message.timestamp.after.max.ms)."""
DRIFT_MAX = 0.2
FULL_CALLS = ("write", "create_file", "make_directory")
CHECKED_BYTES = (8, 9, 10, 11, 16)
"""Bytes of a batch before its checksum of which a change is noticed. From the checksum on, every change is."""
CHECKSUM_AT = 17
MADE_AGAIN = re.compile(r"/[^/]+/[^/]+-\d+/(\d{20}\.(index|timeindex|snapshot)|partition\.metadata)")
CHECKPOINT = re.compile(
    rf"/[^/]+/({'|'.join((checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS, checkpoints.LOG_STARTS, checkpoints.CLEANED))})"
    rf"|/[^/]+/[^/]+-\d+/{checkpoints.LEADER_EPOCHS}"
)
NO_TEXT = 0x80
"""With this bit, a letter is no UTF-8."""


class Faults:
    """The faults that are under way. `record(kind, fields)` takes what is done, for the story.

    `aims`: what a plan has in the place of a broker -> the partition whose leader is meant.
    `disk_is_empty` is told whose disk was replaced.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        zookeeper: ZooKeeper,
        nodes: Mapping[int, BrokerNode],
        aims: Mapping[int, TopicPartition],
        record: Callable[[str, dict[str, Any]], None],
        disk_is_empty: Callable[[int], None],
    ) -> None:
        self._scheduler = scheduler
        self._network = network
        self._zookeeper = zookeeper
        self._nodes = nodes
        self._aims = aims
        self._record = record
        self._disk_is_empty = disk_is_empty
        self._has_emptied = False
        self._under_way: list[Callable[[], None]] = []
        """What undoes each fault that lasts."""
        self._have_ended = False

    def do(self, fault: Fault) -> None:
        node = self._nodes.get(self._hit_by(fault))
        undo = self._begin(fault, node)
        row = {
            "what": fault.what,
            "broker": node.id if node is not None else 0,
            "lasts": fault.lasts,
            "done": undo is not None,
        }
        self._record("fault", row)
        if undo is not None:
            self._under_way.append(undo)
            self._scheduler.call_after(fault.lasts, self._undo, undo)

    def _hit_by(self, fault: Fault) -> int:
        """The number of the broker; 0 if it is ZooKeeper."""
        broker = fault.broker
        if broker == plans.CONTROLLER:
            broker = controller_in(self._zookeeper.tree)
        elif broker in plans.FOLLOWERS:
            role, place = plans.FOLLOWERS[broker]
            leader = self._leader_of(self._aims[role])
            assigned = assignments_in(self._zookeeper.tree).get(self._aims[role])
            followers = [replica for replica in assigned.replicas if replica != leader] if assigned is not None else []
            broker = followers[place] if followers else NO_LEADER
        elif broker in plans.OUTSIDERS:
            assigned = assignments_in(self._zookeeper.tree).get(self._aims[plans.OUTSIDERS[broker]])
            replicas = assigned.replicas if assigned is not None else ()
            broker = next((node for node in self._nodes if node not in replicas), NO_LEADER)
        elif broker in self._aims:
            broker = self._leader_of(self._aims[broker])
        return broker if broker in (0, *self._nodes) else next(iter(self._nodes))

    def _leader_of(self, tp: TopicPartition) -> int:
        state = states_in(self._zookeeper.tree).get(tp)
        return state.leader if state is not None else NO_LEADER

    def undo_all(self) -> None:
        self._have_ended = True
        for undo in list(self._under_way):
            self._undo(undo)

    def _undo(self, undo: Callable[[], None]) -> None:
        if undo in self._under_way:
            self._under_way.remove(undo)
            undo()

    def _begin(self, fault: Fault, node: BrokerNode | None) -> Callable[[], None] | None:
        """Returns what undoes it; None if it could not be done."""
        if node is None:
            self._zookeeper.pause(fault.lasts)
            return _nothing
        match fault.what:
            case plans.CUT | plans.ONE_WAY | plans.CUT_BROKERS | plans.CUT_ZOOKEEPER:
                return self._cut(node, fault.what)
            case plans.CUT_LEADER:
                return self._cut_from(node, self._leader_of(self._aims[plans.led_by(fault.broker)]))
            case plans.CUT_CLIENTS:
                return self._cut_from_clients(node)
            case plans.CUT_CONTROLLER:
                return self._cut_from_controller(node)
            case plans.FULL_DISK:
                return self._fail_calls(node, FULL_CALLS, errno.ENOSPC, self._some_of(node.log_dirs))
            case plans.FAILING_DISK:
                operations = self._scheduler.random.choice(FAILING_CALLS)
                return self._fail_calls(node, operations, errno.EIO, self._some_of(node.log_dirs))
            case plans.SCARCE:
                return self._take_descriptors(node)
            case plans.FEW_FILES:
                return self._leave_few_files(node)
            case plans.CLOCK:
                return self._set_clock(node)
            case plans.SLOW_BROKERS:
                spared = [
                    name for name in self._network.hosts if name not in {other.name for other in self._nodes.values()}
                ]
                mean_s = self._scheduler.random.choice(SLOW_BROKERS_S)
                return self._network.slow_down(node.name, mean_s, spared)
            case plans.SLOW_LINKS:
                return self._slow_down(node)
            case plans.EMPTY_DISK:
                return self._empty_disk(node)
            case plans.MOVE:
                return self._move(node.id, self._aims[plans.led_by(fault.broker)])
            case plans.ELECT:
                return self._elect(node.id, self._aims[plans.led_by(fault.broker)])
        loop, session = node.loop, node.session
        if loop is None:
            return None
        match fault.what:
            case plans.SLOW_DISK:
                return self._slow_disk(node)
            case plans.KILL:
                node.kill()
                return partial(self._start_again, node, node.lives)
            case plans.FLIP:
                node.kill()
                return partial(self._flip_and_start, node, node.lives)
            case plans.POWER:
                node.lose_power(self._scheduler.random)
                return partial(self._start_again, node, node.lives)
            case plans.RESTART:
                node.stop()
                return partial(self._start_again, node, node.lives)
            case plans.RESTART_AND_POWER:
                node.stop()
                return partial(self._start_and_lose_power, node, node.lives)
            case plans.PAUSE:
                loop.pause(fault.lasts)
                return _nothing
            case plans.EXPIRE if session is not None:
                self._zookeeper.expire(session.session_id)
                return _nothing
            case plans.RESET if session is not None and session.simulated is not None:
                session.simulated.break_connection()
                return _nothing
            case plans.LOST_ANSWER if session is not None:
                return self._zookeeper.lose_next_answer(session.session_id)
            case plans.RESETS:
                self._network.host(node.name).reset_connections()
                return _nothing
        return None

    # -- links --------------------------------------------------------------------------------------------------------

    def _cut(self, node: BrokerNode, what: str) -> Callable[[], None]:
        others = [other.name for other in self._nodes.values() if other is not node and what != plans.CUT_ZOOKEEPER]
        others += [self._zookeeper.host.name] * (what != plans.CUT_BROKERS)
        links = [(node.name, other) for other in others]
        if what != plans.ONE_WAY:
            links += [(other, node.name) for other in others]
        return self._cut_links(links)

    def _cut_from_controller(self, node: BrokerNode) -> Callable[[], None] | None:
        """Its requests wait on the way (FLT-11)."""
        controller = self._nodes.get(controller_in(self._zookeeper.tree))
        return None if controller in (None, node) else self._cut_links([(controller.name, node.name)])

    def _cut_from(self, node: BrokerNode, broker: int) -> Callable[[], None] | None:
        """In both directions."""
        other = self._nodes.get(broker)
        return None if other in (None, node) else self._cut_links([(other.name, node.name), (node.name, other.name)])

    def _cut_from_clients(self, node: BrokerNode) -> Callable[[], None]:
        """What they have sent may come late: when they have given it up."""
        brokers = [*(other.name for other in self._nodes.values()), self._zookeeper.host.name]
        clients = [name for name in self._network.hosts if name not in brokers]
        return self._cut_links([link for name in clients for link in ((name, node.name), (node.name, name))])

    def _cut_links(self, links: list[tuple[str, str]]) -> Callable[[], None]:
        for link in links:
            self._network.cut(*link)
        return partial(self._heal, links)

    def _heal(self, links: list[tuple[str, str]]) -> None:
        for link in links:
            self._network.heal(*link)

    def _slow_down(self, node: BrokerNode) -> Callable[[], None]:
        """All links, or only those to clients."""
        random = self._scheduler.random
        spared = [*(other.name for other in self._nodes.values()), self._zookeeper.host.name]
        return self._network.slow_down(node.name, random.choice(SLOW_LINKS_S), random.choice(((), spared)))

    # -- disks and descriptors ----------------------------------------------------------------------------------------

    def _slow_disk(self, node: BrokerNode) -> Callable[[], None]:
        loop = node.loop
        assert loop is not None
        loop.slow_thread_s = SLOW_DISK_S
        node.disk.is_cold = True

        def undo() -> None:
            loop.slow_thread_s = THREAD_S

        return undo

    def _some_of(self, log_dirs: tuple[str, ...]) -> tuple[str, ...]:
        """If there are two, one of them or both."""
        if len(log_dirs) == 1:
            return log_dirs
        return self._scheduler.random.choice((*((one,) for one in log_dirs), log_dirs))

    def _fail_calls(
        self, node: BrokerNode, operations: tuple[str, ...], number: int, log_dirs: tuple[str, ...]
    ) -> Callable[[], None]:
        """A write that fails has written some of its bytes. Processes that are started meanwhile have the same disk."""
        failures = {operation: OSError(number, os.strerror(number), log_dirs) for operation in operations}
        node.disk.failures.update(failures)

        def undo() -> None:
            for operation, failure in failures.items():
                if node.disk.failures.get(operation) is failure:
                    del node.disk.failures[operation]

        return undo

    def mend_disks(self) -> None:
        """From now on, a broker that has lost a log directory is started again some time after the directory works again (KIP-112)."""
        for node in self._nodes.values():
            if node.has_lost_a_directory and not node.disk.failures:
                node.stop()
                self._start_again(node, node.lives)
        self._scheduler.call_after(MEND_S, self.mend_disks)

    def _take_descriptors(self, node: BrokerNode) -> Callable[[], None]:
        """No socket gets a descriptor. Files get those of others that are closed for them, or only for a while, or none: spare descriptors
        may be gone, too."""
        operations = self._scheduler.random.choice(((), ("open_to_keep",), ("open_to_keep", "open", "read_file")))
        undo_calls = self._fail_calls(node, operations, errno.EMFILE, node.log_dirs)
        node.host.lacks_descriptors += 1
        if node.is_running:
            node.disk.open_max = node.disk.open_files() // self._scheduler.random.choice((1, 2))

        def undo() -> None:
            undo_calls()
            node.host.lacks_descriptors -= 1
            node.disk.open_max = None

        return undo

    def _leave_few_files(self, node: BrokerNode) -> Callable[[], None]:
        """One or two logs have open files at a time: to open another one, one of them is closed. No call fails for it."""
        node.disk.logs_max = self._scheduler.random.choice((1, 2))

        def undo() -> None:
            node.disk.logs_max = None

        return undo

    def _empty_disk(self, node: BrokerNode) -> Callable[[], None] | None:
        """Its machine gets a new disk, once in a history, just before its next start, if others have what was on the old one (FLT-33)."""
        if self._has_emptied or self._is_alone(node):
            return None
        self._has_emptied = True
        node.kill()
        return partial(self._replace_disk_and_start, node, node.lives)

    def _replace_disk_and_start(self, node: BrokerNode, life: int) -> None:
        """A topic may have been created while it was down: with it as the only replica, a person would have to decide."""
        if node.lives == life and not self._is_alone(node):
            node.replace_disk()
            self._disk_is_empty(node.id)
        self._start_again(node, life)

    def _is_alone(self, node: BrokerNode) -> bool:
        return any(set(state.isr) == {node.id} for state in states_in(self._zookeeper.tree).values())

    # -- replicas -----------------------------------------------------------------------------------------------------

    def _move(self, broker: int, tp: TopicPartition) -> Callable[[], None] | None:
        """Away from that broker, to the others, and back (CTL-11)."""
        assigned = assignments_in(self._zookeeper.tree).get(tp)
        is_asked = ReassignPartitionsZNode.PATH in self._zookeeper.tree.nodes
        if is_asked or assigned is None or broker not in assigned.replicas or assigned.adding or assigned.removing:
            return None
        others = sorted((other for other in self._nodes if other != broker), key=assigned.replicas.__contains__)
        self._ask_to_move(tp, tuple(others[::-1][: len(assigned.replicas)]))
        return partial(self._ask_to_move, tp, assigned.replicas)

    def _ask_to_move(self, tp: TopicPartition, replicas: tuple[int, ...]) -> None:
        """Unless an earlier request is under way."""
        if ReassignPartitionsZNode.PATH not in self._zookeeper.tree.nodes:
            self._zookeeper.tree.create(ReassignPartitionsZNode.PATH, ReassignPartitionsZNode.encode({tp: replicas}))

    def _elect(self, broker: int, tp: TopicPartition) -> Callable[[], None] | None:
        """Another member of the ISR is to lead. The leader stays in the ISR (CTL-12)."""
        assigned, state = assignments_in(self._zookeeper.tree).get(tp), states_in(self._zookeeper.tree).get(tp)
        if assigned is None or state is None or broker not in state.isr or assigned.adding or assigned.removing:
            return None
        if assigned.replicas[0] != broker:
            self._ask_to_move(tp, (broker, *(other for other in assigned.replicas if other != broker)))
        return partial(self._ask_to_elect, tp)

    def _ask_to_elect(self, tp: TopicPartition) -> None:
        """The first replica, unless an earlier request is under way."""
        if PreferredElectionZNode.PATH not in self._zookeeper.tree.nodes:
            self._zookeeper.tree.create(PreferredElectionZNode.PATH, PreferredElectionZNode.encode([tp]))

    # -- clocks -------------------------------------------------------------------------------------------------------

    def _set_clock(self, node: BrokerNode) -> Callable[[], None]:
        """The wall clock jumps, and then runs too fast or too slow until it is set right."""
        random = self._scheduler.random
        node.host.set_wall_clock(random.choice(JUMPS_S) * random.random(), random.uniform(-DRIFT_MAX, DRIFT_MAX))
        return partial(node.host.set_wall_clock, 0.0)

    # -- processes ----------------------------------------------------------------------------------------------------

    def _start_again(self, node: BrokerNode, life: int) -> None:
        """After that life. It may still be ending in an orderly way: then the next one begins when it has ended."""
        if node.lives > life:
            return
        if node.loop is None:
            node.start()
        else:
            self._scheduler.call_after(START_AGAIN_S, self._start_again, node, life)

    def _start_and_lose_power(self, node: BrokerNode, life: int) -> None:
        """The next life after an orderly end is one that ends without: nothing of the first end may be believed then."""
        self._start_again(node, life)
        self._lose_power_when_ready(node, life)

    def _lose_power_when_ready(self, node: BrokerNode, life: int) -> None:
        if node.lives > life and node.is_ready:
            self._scheduler.call_after(self._scheduler.random.uniform(*RUNS_S), self._lose_power, node, node.lives)
        elif not self._have_ended:
            self._scheduler.call_after(START_AGAIN_S, self._lose_power_when_ready, node, life)

    def _lose_power(self, node: BrokerNode, life: int) -> None:
        if node.lives == life and node.is_ready and not self._have_ended:
            node.lose_power(self._scheduler.random)
            self._scheduler.call_after(START_AGAIN_S, self._start_again, node, life)

    def _flip_and_start(self, node: BrokerNode, life: int) -> None:
        if node.loop is None and node.lives == life:
            random = self._scheduler.random
            if random.random() < 0.5:
                path = flip_a_bit(node.disk, node.id, states_in(self._zookeeper.tree), random)
            else:
                path = flip_a_bit_beside_the_logs(node.disk, random)
            self._record("bit_flipped", {"broker": node.id, "path": path})
        self._start_again(node, life)


def _nothing() -> None:
    """Undoes a fault that ends by itself."""


def flip_a_bit(
    disk: MemoryDisk, broker: int, states: Mapping[TopicPartition, LeaderAndIsr], random: Random
) -> str | None:
    """Flips a bit in a log that is closed. Returns its path; None if there is no log of which Kafka promises to notice it.

    Promised is (FLT-27): above the recovery point, the log is cut there. The replica is outside of the ISR: one that is in it may be the
    only one with the records.
    """
    recovery_points = {path: _recovery_points(disk, path) for path in LOG_DIRS if not _was_closed(disk, path)}
    found = []
    for path, node in disk.names.items():
        match = LOG_NAME.fullmatch(path)
        if not match or not isinstance(node, Inode) or match["log_dir"] not in recovery_points:
            continue
        tp = TopicPartition(match["topic"], int(match["partition"]))
        state = states.get(tp)
        if state is None or broker in state.isr:
            continue
        for position, header in iter_batches(bytes(node.content)):
            if header.base_offset >= recovery_points[match["log_dir"]].get(tp, 0):
                found.append((path, position, header.size_in_bytes))
    if not found:
        return None
    path, position, size = random.choice(found)
    within = random.choice((*CHECKED_BYTES, *[random.randrange(CHECKSUM_AT, size) for _ in range(20)]))
    disk.corrupt(path, position + within, 1 << random.randrange(8))
    return path


def flip_a_bit_beside_the_logs(disk: MemoryDisk, random: Random) -> str | None:
    """Flips a bit in a file that is made again if it is damaged (FLT-27), of any replica. Returns its path; None if there is none.

    A checkpoint has no checksum, so another digit would not be noticed, in Kafka as well: the bit makes it no text any more.
    """
    found = [
        path
        for path, node in disk.names.items()
        if isinstance(node, Inode) and node.content and (MADE_AGAIN.fullmatch(path) or CHECKPOINT.fullmatch(path))
    ]
    if not found:
        return None
    path = random.choice(found)
    mask = NO_TEXT if CHECKPOINT.fullmatch(path) else 1 << random.randrange(8)
    disk.corrupt(path, random.randrange(disk.size_of(path)), mask)
    return path


def _was_closed(disk: MemoryDisk, log_dir: str) -> bool:
    """In an orderly way."""
    return disk.exists(f"{log_dir}/{CLEAN_SHUTDOWN}")


def _recovery_points(disk: MemoryDisk, log_dir: str) -> dict[TopicPartition, int]:
    """Read past the disk's faults."""
    path = f"{log_dir}/{checkpoints.RECOVERY_POINTS}"
    return checkpoints.offsets_of(disk.content(path) if disk.exists(path) else None, path)
