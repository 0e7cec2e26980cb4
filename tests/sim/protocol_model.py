"""Random schedules of one partition's replication: brokers, ZooKeeper, the controller and the network, step by step.

One seed is one schedule, so a failure is repeated by its seed. A run is many episodes; each begins with an empty partition,
goes through some hundred random steps, and ends with all faults healed and everything delivered: then the replicas must be
equal. Only steps that did something count.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.replication.following.replica_fetcher import Work
from broker.settings.config import TopicConfig
from protocol.types import NO_LEADER
from tests.sim.model_broker import LAG_S, ModelBroker, ModelClock, Question
from tests.sim.model_checks import ModelChecks, Violation
from tests.sim.model_controller import ModelController, ModelZooKeeper
from tests.sim.model_isr import ModelIsrWrites

EPISODE_STEPS = 300
QUIET_ROUNDS_MAX = 60
"""After this many rounds without a new record, replicas that still differ will not change."""
PERSON_AFTER = 30
"""Rounds left when an admin checks whether the partition has a leader."""
LOSSY_EPISODES = 0.3
"""With power losses, and half of them with unclean elections: there committed records may be lost."""
WORK = {
    "produce": 14,
    "ask": 22,
    "serve": 22,
    "deliver": 22,
    "control": 9,
    "isr": 8,
    "refusal": 9,
    "acknowledge": 5,
    "lag": 6,
    "controller": 2,
    "notify": 0.5,
    "start": 0.6,
    "notice": 0.6,
    "resume": 0.6,
    "heal": 0.15,
    "checkpoint": 0.5,
    "hear": 0.3,
    "time": 0.5,
}
"""Step -> how often it is tried."""

FAULTS = {
    "lose": 1.2,
    "serve_late": 1.2,
    "old_control": 0.4,
    "kill": 0.25,
    "power": 0.5,
    "expire": 0.4,
    "failover": 0.25,
    "coup": 1,
    "preferred": 2,
    "swing": 8,
    "deafen": 0.4,
    "shutdown": 0.08,
    "pause": 0.25,
    "cut": 0.4,
}
"""The same with a share for each episode: some episodes have none of a fault, some have much of it."""

FAULT_SHARES = (0.0, 0.2, 0.5, 1.0, 4.0)
EMPTIED_SHARES = (0.0, 0.0, 0.1, 0.5)
"""How often a member of the ISR that starts finds an empty disk (FLT-33), in an episode."""


@dataclass
class Episode:
    """One partition from its creation on. `is_lossy`: see LOSSY_EPISODES. `counts`: step -> how often it did something."""

    dice: random.Random
    is_lossy: bool
    brokers: list[ModelBroker]
    zookeeper: ModelZooKeeper
    controller: ModelController
    checks: ModelChecks
    clock: ModelClock
    isr_writes: ModelIsrWrites
    counts: Counter[str] = field(default_factory=Counter)
    late: list[Question] = field(default_factory=list)
    cuts: set[tuple[int, int]] = field(default_factory=set)
    deaf: set[int] = field(default_factory=set)
    emptied_share: float = 0.0
    swing: tuple[ModelBroker, ModelBroker] | None = None
    values: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def begin(cls, seed: int | str) -> Episode:
        dice = random.Random(seed)
        replicas = tuple(dice.sample((1, 2, 3), 3))
        clock = ModelClock()
        config = TopicConfig(min_insync_replicas=dice.choice((1, 1, 2)))
        brokers = [ModelBroker(broker, config, clock) for broker in (1, 2, 3)]
        checks = ModelChecks(brokers)
        zookeeper = ModelZooKeeper(checks)
        controller = ModelController(zookeeper, replicas)
        is_lossy = dice.random() < LOSSY_EPISODES
        controller.unclean_allowed = is_lossy and dice.random() < 0.5
        for broker in brokers:
            broker.checks = checks
            broker.created = lambda: zookeeper.czxid
            broker.start(zookeeper.register(broker.id))
        controller.take_office()
        writes = ModelIsrWrites(dice, brokers, zookeeper, checks)
        episode = cls(dice, is_lossy, brokers, zookeeper, controller, checks, clock, writes)
        episode.emptied_share = dice.choice(EMPTIED_SHARES)
        return episode

    def run(self, steps: int) -> int:
        """Random steps, then quiet. Returns how many were made. Raises Violation."""
        made = 0
        weights = WORK | {name: weight * self.dice.choice(FAULT_SHARES) for name, weight in FAULTS.items()}
        names, bounds = list(weights), list(itertools.accumulate(weights.values()))
        functions: list[Callable[[], bool]] = [getattr(self, f"_{name}") for name in names]
        plan = random.Random(self.dice.random())
        while made < steps:
            for index in plan.choices(range(len(names)), cum_weights=bounds, k=64):
                if functions[index]():
                    made += 1
                    self.counts[names[index]] += 1
                    self._check()
        return made + self._quiet()

    def _check(self) -> None:
        self.isr_writes.collect()
        assert self.zookeeper.state is not None
        self.checks.after_step(self.zookeeper.state)

    def _any(self) -> ModelBroker:
        return self.brokers[int(self.dice.random() * 3)]

    def _acting(self) -> ModelBroker | None:
        """One of the three brokers, if its process runs."""
        broker = self._any()
        return broker if broker.is_running and not broker.is_paused else None

    # -- producers and the brokers themselves ---------------------------------------------------------------------

    def _produce(self) -> bool:
        broker = self._acting()
        if broker is None or broker.partition.role is not ModelBroker.LEADER:
            return False
        return broker.produce(next(self.values), -1 if self.dice.random() < 0.7 else 1)

    def _acknowledge(self) -> bool:
        broker = self._acting()
        if broker is None or not broker.has_moved:
            return False
        broker.answer_producers()
        return True

    def _time(self) -> bool:
        self.clock.now += LAG_S * self.dice.choice((0.1, 0.4, 0.6, 1.1))
        return True

    def _lag(self) -> bool:
        broker = self._acting()
        return broker is not None and broker.partition.shrink_if_lagging()

    def _checkpoint(self) -> bool:
        broker = self._acting()
        return broker is not None and broker.checkpoint()

    # -- followers and leaders ------------------------------------------------------------------------------------

    def _ask(self) -> bool:
        broker = self._acting()
        return broker is not None and broker.ask()

    def _question(self) -> tuple[ModelBroker, tuple[int, Work]] | None:
        broker = self._acting()
        if broker is None or not broker.questions:
            return None
        keys = list(broker.questions)
        return broker, keys[int(self.dice.random() * len(keys))]

    def _serve(self) -> bool:
        found = self._question()
        if found is None:
            return False
        question = found[0].questions[found[1]]
        return question.answer is None and self._serve_one(question, may_park=self.dice.random() < 0.5)

    def _serve_one(self, question: Question, *, may_park: bool) -> bool:
        leader = self.brokers[question.leader - 1]
        if not leader.is_running or leader.is_paused or (question.asker.id, leader.id) in self.cuts:
            return False
        leader.serve(question, may_park=may_park)
        return True

    def _deliver(self) -> bool:
        found = self._question()
        if found is None:
            return False
        broker, key = found
        if broker.questions[key].answer is None or (key[0], broker.id) in self.cuts:
            return False
        broker.deliver(key)
        return True

    def _lose(self) -> bool:
        """The follower gives up; what the leader has not served yet, it may serve later."""
        found = self._question()
        if found is None:
            return False
        question = found[0].lose(found[1])
        if question.answer is None and not question.is_parked and self.dice.random() < 0.5:
            self.late.append(question)
        return True

    def _serve_late(self) -> bool:
        """A question whose asker waits no more, or is dead (BUG-23)."""
        if not self.late:
            return False
        question = self.late.pop(int(self.dice.random() * len(self.late)))
        return self._serve_one(question, may_park=False)

    def _isr(self) -> bool:
        return self.isr_writes.go_on()

    # -- the controller -------------------------------------------------------------------------------------------

    def _control(self) -> bool:
        """The next request of the controller arrives, sometimes twice."""
        broker = self._acting()
        is_deaf = broker is None or broker.id in self.deaf
        queue = None if broker is None or is_deaf else self.controller.queues.get(broker.id)
        if broker is None or not queue:
            return False
        request = queue[0]
        if self.dice.random() < 0.95:
            queue.popleft()
        broker.take(request)
        return True

    def _old_control(self) -> bool:
        """A request of a deposed controller arrives."""
        if not self.controller.old_queues:
            return False
        at = int(self.dice.random() * len(self.controller.old_queues))
        broker_id, queue = self.controller.old_queues[at]
        broker = self.brokers[broker_id - 1]
        request = queue.popleft()
        if not queue:
            del self.controller.old_queues[at]
        if not broker.is_running or broker.is_paused:
            return False
        broker.take(request)
        return True

    def _controller(self) -> bool:
        return self.controller.compare_brokers()

    def _refusal(self) -> bool:
        """A broker's answer that a log is missing reaches the controller."""
        broker = self._any()
        if not broker.missing or broker.id in self.deaf:
            return False
        refusal = broker.missing.pop(0)
        if refusal.controller_epoch == self.controller.epoch:
            self.controller.hear_of_missing_log(broker.id, refusal.life, refusal.leader_epoch)
        return True

    def _notify(self) -> bool:
        return self.controller.hear_of_isr()

    def _failover(self) -> bool:
        hearing = (b for b in self.brokers if b.is_running and not b.is_paused and b.id not in self.deaf)
        self.controller.take_office([broker.id for broker in hearing])
        return True

    def _coup(self) -> bool:
        """The leader dies with the controller and returns unnoticed (FLT-23). In a lossy episode it has lost a record of a follower."""
        state = self.zookeeper.state
        assert state is not None
        leader = self.brokers[state.leader - 1] if state.leader != NO_LEADER else None
        end = len(leader.nodes) if leader is not None else 0
        if leader is None or not end or not leader.is_running:
            return False
        if not any(other.has_prefix(leader.nodes, end) for other in self.brokers if other is not leader):
            return False
        self._kill_one(leader)
        if self.is_lossy:
            self._lose_unsynced(leader, end - 1)
        self._bring_up(leader)
        return self._failover()

    def _preferred(self) -> bool:
        return self.controller.elect_preferred(tuple(self.dice.sample(self.controller.replicas, 3)))

    def _swing(self) -> bool:
        """Leadership moves to a broker that misses a record, and returns when its first leader has cut that record (BUG-13).

        A third broker that has the record learns only of the return: the controller changed in between.
        """
        state = self.zookeeper.state
        assert state is not None
        if self.swing is not None:
            home, third = self.swing
            if home.has_prefix(third.nodes, len(third.nodes)) or not self.controller.elect_preferred((home.id,)):
                # Not cut yet, or it may not lead: wait for it, but not for ever.
                self.swing = None if self.dice.random() < 0.02 else self.swing
                return self.swing is None
            self.swing = None
            self._failover()
            return True
        if state.leader == NO_LEADER:
            return False
        home = self.brokers[state.leader - 1]
        target, third = self.dice.sample([broker for broker in self.brokers if broker is not home], 2)
        missing = len(third.nodes)
        if len(target.nodes) >= missing or not home.has_prefix(third.nodes, missing) or not third.is_running:
            return False
        if not self.controller.elect_preferred((target.id,)):
            return False
        self.swing = home, third
        self.deaf.add(third.id)
        return True

    def _shutdown(self) -> bool:
        return self.controller.begin_shutdown(self._any().id)

    # -- faults ---------------------------------------------------------------------------------------------------

    def _kill(self) -> bool:
        broker = self._any()
        if not broker.is_running:
            return False
        self._kill_one(broker)
        self._bounce(broker)
        return True

    def _bounce(self, broker: ModelBroker) -> None:
        """Sometimes it is back before anybody has seen that it was gone (FLT-23)."""
        if self.dice.random() < 0.4:
            self._bring_up(broker)

    def _kill_one(self, broker: ModelBroker) -> None:
        self.isr_writes.collect()
        self.late += broker.kill()
        self.late = [question for question in self.late if question.leader != broker.id]
        for other in self.brokers:
            if other.is_running:
                for key in [key for key in other.questions if key[0] == broker.id]:
                    other.lose(key)

    def _power(self) -> bool:
        """Killed, and what was not synced is gone (FLT-24, 25). In a lossy episode only: it may have been acknowledged."""
        broker = self._any()
        if not broker.is_running or not self.is_lossy:
            return False
        self._kill_one(broker)
        self._lose_unsynced(broker, int(self.dice.random() ** 0.3 * (len(broker.nodes) + 1)))
        self._bounce(broker)
        return True

    def _lose_unsynced(self, broker: ModelBroker, end: int) -> None:
        broker.lose_unsynced(end)
        self.checks.is_clean = False

    def _start(self) -> bool:
        broker = self._any()
        if broker.is_running:
            return False
        self._bring_up(broker)
        return True

    def _bring_up(self, broker: ModelBroker) -> None:
        state = self.zookeeper.state
        assert state is not None
        is_out = broker.id not in state.isr and broker.id not in self.zookeeper.registered
        if is_out and self.dice.random() < 0.2:
            broker.wipe()
        elif broker.id in state.isr and self.dice.random() < self.emptied_share * (1 if len(state.isr) > 1 else 0.1):
            broker.wipe(is_in_isr=True)
            self.counts["empty"] += 1
        broker.start(self.zookeeper.register(broker.id))

    def _expire(self) -> bool:
        """The session of a dead or standing broker mostly; sometimes of one that works well (FLT-20)."""
        broker = self._any()
        is_well = broker.is_running and not broker.is_paused
        if broker.id not in self.zookeeper.registered or (is_well and self.dice.random() < 0.8):
            return False
        del self.zookeeper.registered[broker.id]
        return True

    def _notice(self) -> bool:
        broker = self._acting()
        if broker is None or self.zookeeper.registered.get(broker.id) == broker.life:
            return False
        broker.lose_session(self.zookeeper.register(broker.id))
        return True

    def _pause(self) -> bool:
        broker = self._acting()
        if broker is None:
            return False
        broker.is_paused = True
        return True

    def _resume(self) -> bool:
        broker = self._any()
        was_paused, broker.is_paused = broker.is_paused, False
        return was_paused

    def _cut(self) -> bool:
        """Cuts one direction between two brokers."""
        pair = self._any().id, self._any().id
        if pair[0] == pair[1] or pair in self.cuts:
            return False
        self.cuts.add(pair)
        return True

    def _heal(self) -> bool:
        if not self.cuts:
            return False
        self.cuts.clear()
        return True

    def _deafen(self) -> bool:
        """It is cut from the controller only (FLT-11): it goes on in its old epoch."""
        broker = self._any()
        if broker.id in self.deaf:
            return False
        self.deaf.add(broker.id)
        return True

    def _hear(self) -> bool:
        waiting = self.deaf - ({self.swing[1].id} if self.swing is not None else set())
        if not waiting:
            return False
        self.deaf.remove(self.dice.choice(sorted(waiting)))
        return True

    # -- the end --------------------------------------------------------------------------------------------------

    def _quiet(self) -> int:
        """Everything is healed and delivered, in rounds, until nothing is left to do. Returns the steps."""
        self.cuts.clear()
        self.deaf.clear()
        self.controller.stopping.clear()
        made = 0
        for broker in self.brokers:
            broker.is_paused = False
            if not broker.is_running:
                self._bring_up(broker)
            elif self.zookeeper.registered.get(broker.id) != broker.life:
                broker.lose_session(self.zookeeper.register(broker.id))
        ends, rounds_left = [-1], QUIET_ROUNDS_MAX
        while rounds_left and not self._is_settled():
            made += self._quiet_round()
            if rounds_left == PERSON_AFTER:
                self.controller.elect_uncleanly()
            before, ends = ends, [len(broker.nodes) for broker in self.brokers]
            rounds_left = QUIET_ROUNDS_MAX if ends != before else rounds_left - 1
        assert self.zookeeper.state is not None
        self.checks.quiet(self.zookeeper.state)
        return made

    def _quiet_round(self) -> int:
        """Makes each step in turn until none has work; then time passes."""
        made = 0
        self.clock.now += LAG_S / 20
        for name in (
            "controller",
            "control",
            "refusal",
            "isr",
            "ask",
            "serve",
            "deliver",
            "serve_late",
            "acknowledge",
            "lag",
        ):
            function: Callable[[], bool] = getattr(self, f"_{name}")
            for _ in range(12):
                if function():
                    made += 1
                    self.counts[name] += 1
                    self._check()
        return made

    def _is_settled(self) -> bool:
        state = self.zookeeper.state
        assert state is not None
        ends = {(len(b.nodes), b.partition.high_watermark) for b in self.brokers}
        return (
            len(ends) == 1
            and len(state.isr) == 3
            and all(b.partition.leader_epoch == state.leader_epoch for b in self.brokers)
            and all(len(b.nodes) == b.partition.high_watermark for b in self.brokers)
        )


@dataclass
class RunResult:
    """What a run did. `violation` is the first one, found in `seed` after `steps` in all."""

    steps: int
    episodes: int
    counts: Counter[str]
    acknowledged: int
    violation: Violation | None = None
    seed: str | None = None


def run(seed: int, steps: int) -> RunResult:
    """Episodes until that many steps are made, or an invariant fails."""
    result = RunResult(0, 0, Counter(), 0)
    while result.steps < steps:
        name = f"{seed}/{result.episodes}"
        episode = Episode.begin(name)
        try:
            result.steps += episode.run(EPISODE_STEPS)
        except Violation as violation:
            result.violation, result.seed = violation, name
        result.episodes += 1
        result.counts += episode.counts
        result.acknowledged += episode.checks.acknowledged_end
        if result.violation is not None:
            result.steps += sum(episode.counts.values())
            break
    return result
