"""The controller and ZooKeeper of the protocol model, for one partition: the real election rules, and writes that count.

The steps are those of `controller/reactions`: decide on what is known, write on the condition of the znode's version,
adopt and decide again after a conflict, announce what was written. Requests to each broker wait in a queue of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Set

from controller.decisions import leader_election
from controller.decisions.bounces import Bounces
from controller.partition_status import PartitionStatus as State
from controller.partition_status import may_become
from protocol.rpc.messages import LeaderAndIsrRequest, PartitionState, UpdateMetadataRequest
from protocol.types import NO_LEADER, BrokerInfo, LeaderAndIsr
from tests.sim.model_broker import TOPIC_ID, TP
from tests.sim.model_checks import ModelChecks, Violation

Request = LeaderAndIsrRequest | UpdateMetadataRequest
Decide = Callable[[LeaderAndIsr], LeaderAndIsr | None]


class ModelZooKeeper:
    """The partition's state znode with the zxid of its last write, and which life of each broker is registered (czxid)."""

    def __init__(self, checks: ModelChecks) -> None:
        self._checks = checks
        self._zxid = 100
        self.state: LeaderAndIsr | None = None
        self.mzxid = 0
        self.czxid = 0
        self.registered: dict[int, int] = {}

    def register(self, broker: int) -> int:
        """Registers a broker; its earlier session is closed."""
        self._zxid += 1
        self.registered[broker] = self._zxid
        return self._zxid

    def lossy_election(self) -> None:
        """An admin gives up the records of the ISR."""
        self._checks.is_clean = False

    def write(self, new: LeaderAndIsr, version: int) -> LeaderAndIsr | None:
        """A conditional write. None: bad version."""
        current = self.state
        if current is not None and current.zk_version != version:
            return None
        written = LeaderAndIsr(new.leader, new.leader_epoch, new.isr, new.controller_epoch, version + 1)
        self._checks.state_written(current, written)
        self._zxid += 1
        self.state, self.mzxid = written, self._zxid
        self.czxid = self.czxid or self._zxid
        return written


class ModelController:
    """`queues`: broker -> requests that wait, oldest first. `old_queues`: what deposed controllers still have."""

    def __init__(self, zookeeper: ModelZooKeeper, replicas: tuple[int, ...]) -> None:
        self.zookeeper = zookeeper
        self.replicas = replicas
        self.unclean_allowed = False
        self.epoch = 0
        self.known: dict[int, int] = {}
        self.stopping: set[int] = set()
        self.emptied: set[int] = set()
        self.isr_before: tuple[int, tuple[int, ...]] | None = None
        self.queues: dict[int, deque[Request]] = {}
        self.old_queues: list[tuple[int, deque[Request]]] = []
        self.state: LeaderAndIsr | None = None
        self.partition_state = State.NON_EXISTENT

    # -- events ---------------------------------------------------------------------------------------------------

    def create_topic(self) -> None:
        self._move(State.NEW)
        first = leader_election.first_leader(self.replicas, self._live(), self.epoch)
        assert first is not None
        self.state = self.zookeeper.write(first, -1)
        self._move(State.ONLINE)
        self._announce(self.known, is_new=True)

    def take_office(self, answering: Collection[int] = (1, 2, 3)) -> None:
        """A new controller: what waits in the old one's queues may still come (INV-8). `answering`: who shows that it lives."""
        self.old_queues += [(broker, queue) for broker, queue in self.queues.items() if queue]
        self.epoch += 1
        self.known = dict(self.zookeeper.registered)
        self.stopping = set()
        self.emptied = set()
        self.isr_before = None
        self.queues = {broker: deque() for broker in self.known}
        self.state = self.zookeeper.state
        self._tell_metadata(self.known)
        if self.state is None:
            self.partition_state = State.NON_EXISTENT
            self.create_topic()
            return
        is_led = self.state.leader in self.known
        self.partition_state = State.ONLINE if is_led else State.OFFLINE
        self._elect_after_unseen_bounces(answering)
        if self.partition_state is State.OFFLINE:
            self._elect()
        dead = set(self.state.isr) - self.known.keys()
        if dead:
            self._change(lambda state: leader_election.without_replicas(state, dead, self.epoch))
        self._announce(self.known)

    def _elect_after_unseen_bounces(self, answering: Collection[int]) -> None:
        assert self.state is not None
        bounces = Bounces([BrokerInfo(broker, life, ()) for broker, life in self.known.items()])
        bounces.note({TP: self.state}, {TP: self.zookeeper.mzxid})
        if bounces:
            self._change(
                lambda state: leader_election.after_unseen_bounces(
                    state, self.replicas, self.known, bounces.since(TP), answering, self.epoch
                )
            )

    def compare_brokers(self) -> bool:
        """`broker_changes.compare_brokers`. False: nothing is new."""
        found, known = self.zookeeper.registered, self.known
        if found == known:
            return False
        bounced = {broker for broker in found.keys() & known.keys() if found[broker] != known[broker]}
        gone = (known.keys() - found.keys()) | bounced
        came = (found.keys() - known.keys()) | bounced
        for broker in gone:
            del self.known[broker]
            del self.queues[broker]
            self.stopping.discard(broker)
            self.emptied.discard(broker)
        for broker in came - bounced:
            self._add(broker)
        has_changed = bool(gone) and self._fail_over(gone)
        for broker in bounced:
            self._add(broker)
        if came and self.partition_state is State.OFFLINE:
            has_changed = self._elect() or has_changed
        self._tell_metadata(self.known)
        self._announce(self.known if has_changed else came)
        return True

    def begin_shutdown(self, broker: int) -> bool:
        """STA-2."""
        if broker not in self.known or broker in self.stopping or self.state is None:
            return False
        self.stopping.add(broker)
        if self.state.leader == broker:
            has_changed = self._change(
                lambda state: leader_election.before_shutdown(
                    state, self.replicas, self._with_log(), self.stopping, self.epoch
                )
            )
        else:
            has_changed = self._take_out({broker})
        self._announce(self.known if has_changed else ())
        return True

    def hear_of_missing_log(self, broker: int, life: int, leader_epoch: int) -> bool:
        """`disk_failures.on_logs_missing`."""
        state = self.state
        assert state is not None
        if self.known.get(broker) != life or broker in self.emptied or state.leader_epoch != leader_epoch:
            return False
        has_changed = False
        if broker in state.isr:
            self.emptied.add(broker)
            if state.leader == broker:
                self._move(State.OFFLINE)
                has_changed = self._elect()
            else:
                has_changed = self._take_out({broker})
        if has_changed:
            self._announce(self.known)
        elif broker not in self.state.isr:
            self._announce((broker,))
        return True

    def elect_uncleanly(self) -> bool:
        """An admin requests an election (`elections_by_request`)."""
        assert self.state is not None
        if self.state.leader in self._with_log():
            return False
        begins_empty = not self._with_log()
        able = self._with_log() or {next(replica for replica in self.replicas if replica in self.known)}
        self.zookeeper.lossy_election()

        def decide(state: LeaderAndIsr) -> LeaderAndIsr | None:
            return leader_election.after_failure(state, self.replicas, able, self.epoch, unclean_allowed=True)

        if not self._change(decide):
            return False
        if begins_empty:
            self.emptied -= able
        for broker in self.known:
            self._announce((broker,), is_new=begins_empty and broker in able)
        return True

    def elect_preferred(self, order: tuple[int, ...]) -> bool:
        """CTL-12, with an assignment in another order."""
        has_changed = self._change(lambda state: leader_election.preferred(state, order, self._live(), self.epoch))
        self._announce(self.known if has_changed else ())
        return has_changed

    def hear_of_isr(self) -> bool:
        """An ISR change notification."""
        if self.state == self.zookeeper.state:
            return False
        self._adopt(self.zookeeper.state)
        return True

    # -- decide, persist, apply -----------------------------------------------------------------------------------

    def _live(self) -> Set[int]:
        return self._with_log() - self.stopping

    def _with_log(self) -> Set[int]:
        """`ClusterState.with_disk`."""
        return self.known.keys() - self.emptied

    def _take_out(self, gone: Collection[int]) -> bool:
        return self._change(lambda state: leader_election.without_replicas(state, {*gone, *self.emptied}, self.epoch))

    def _add(self, broker: int) -> None:
        self.known[broker] = self.zookeeper.registered[broker]
        self.queues[broker] = deque()

    def _fail_over(self, gone: Collection[int]) -> bool:
        assert self.state is not None
        if self.state.leader in gone:
            self._move(State.OFFLINE)
            return self._elect()
        return self._take_out(gone)

    def _elect(self) -> bool:
        def decide(state: LeaderAndIsr) -> LeaderAndIsr | None:
            if state.leader in self._with_log():
                return None
            if state.leader in self.emptied and self.isr_before and self.isr_before[0] == state.leader_epoch:
                state = state._replace(isr=self.isr_before[1])
            return leader_election.after_failure(
                state, self.replicas, self._live(), self.epoch, unclean_allowed=self.unclean_allowed
            )

        return self._change(decide)

    def _change(self, decide: Decide) -> bool:
        while True:
            assert self.state is not None
            new = decide(self.state)
            if new is None:
                return False
            written = self.zookeeper.write(new, self.state.zk_version)
            if written is not None:
                self._adopt(written)
                self._move(State.OFFLINE if written.leader == NO_LEADER else State.ONLINE)
                return True
            self._adopt(self.zookeeper.state)

    def _adopt(self, state: LeaderAndIsr | None) -> None:
        """`ClusterState.set_leadership`: a replica that has left the ISR no longer counts as emptied."""
        old = self.state
        if old is not None and state is not None and old.leader_epoch != state.leader_epoch:
            has_shrunk = set(state.isr) < set(old.isr)
            self.isr_before = (state.leader_epoch, old.isr) if has_shrunk else None
        self.state = state
        self.emptied &= set(state.isr if state is not None else ())

    def _move(self, target: State) -> None:
        if not may_become(self.partition_state, target):
            raise Violation("CTL-4", f"{self.partition_state} -> {target}")
        self.partition_state = target

    # -- announce -------------------------------------------------------------------------------------------------

    def _tell_metadata(self, brokers: Collection[int]) -> None:
        live = tuple(BrokerInfo(broker, life, ()) for broker, life in sorted(self.known.items()))
        for broker in brokers:
            self.queues[broker].append(UpdateMetadataRequest(9, self.epoch, self.known[broker], (), {}, live))

    def _announce(self, brokers: Collection[int], *, is_new: bool = False) -> None:
        state = self.state
        assert state is not None
        told = PartitionState(
            TP.topic,
            TP.partition,
            self.epoch,
            state.leader,
            state.leader_epoch,
            state.isr,
            state.zk_version,
            self.replicas,
            is_new=is_new,
        )
        for broker in brokers:
            if broker in self.replicas:
                request = LeaderAndIsrRequest(9, self.epoch, self.known[broker], (told,), {TP.topic: TOPIC_ID})
                self.queues[broker].append(request)
