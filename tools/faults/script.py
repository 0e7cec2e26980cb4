"""Faults that a person writes down: `kill leader of departures-0 at 20s`, `restart it at 35s` (FAU-1)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from protocol.conversation.rule import CLOSE_IDLE
from tools.cluster.fault_log import named_as
from tools.cluster.processes import ClusterError
from tools.failures import ExpectedError
from tools.faults.cluster import OF_REQUESTS, Cluster, Node, State
from tools.faults.faults import ACTIONS, heal
from tools.faults.record import FaultRecord
from tools.faults.request_words import RequestFault
from tools.faults.roles import Roles
from tools.faults.words import (
    ROLES,
    UNDOING,
    VERBS,
    Breakage,
    FaultError,
    Words,
    broker_of,
    parse_words,
    role_of,
    seconds_of,
)

__all__ = [
    "ROLES",
    "VERBS",
    "DoneFault",
    "FaultError",
    "FaultRun",
    "Faulted",
    "ScriptedFault",
    "broker_of",
    "check",
    "parse",
    "parse_all",
    "seconds_of",
]

ROLE_RETRY_S = 0.1
ROLE_TIMEOUT_S = 10.0
"""How long a fault waits for a broker that has its role."""
UNKNOWN_TIMEOUT_S = 1.0
"""How long it waits if no broker can have the role: a topic that has just been created is unknown for a moment."""


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """`at_s`: seconds since the start of the replay. `role`: one of ROLES, such as `leader of departures-0`.

    `breakage`: which links, for `isolate` and `cut`. `lasts_s`: after that time the fault is undone; None: at the end, or by another.
    `request`: of a fault in single requests.
    """

    verb: str
    role: str
    at_s: float
    breakage: Breakage | None = None
    lasts_s: float | None = None
    request: RequestFault | None = None

    @property
    def words(self) -> Words:
        return Words(self.verb, self.role, self.breakage, self.lasts_s, request=self.request)

    def __str__(self) -> str:
        return f"{self.words} at {self.at_s:g}s"


@dataclass(slots=True)
class DoneFault:
    """A fault that was tried. `broker`: the broker that it hit; None if it hit ZooKeeper, or nothing.

    `partitions`: (topic, partition) that the broker led before. `error`: why it failed; empty if it did not.
    """

    verb: str
    role: str
    broker: int | None
    at_ns: int
    """When it started, in nanoseconds since 1970 UTC by the replay's common clock."""
    partitions: list[tuple[str, int]] = field(default_factory=list)
    error: str = ""
    links: str = ""
    """Which links `isolate` and `cut` broke, in words."""
    took_s: float = 0.0
    """Until it was carried out: a program of the user, or a clean stop, may take long."""

    def to_row(self) -> dict[str, Any]:
        row = asdict(self)
        del row["took_s"]
        return row

    def __str__(self) -> str:
        """`kill leader of t-0: broker 2, which leads t-0, t-3`."""
        if self.role == "everything":
            return f"{self.verb} everything{self.error and f': {self.error}'}"
        who = "ZooKeeper" if self.broker is None else f"broker {self.broker}"
        names = ", ".join(f"{topic}-{number}" for topic, number in self.partitions)
        what = " ".join(filter(None, (self.verb, self.role, self.links)))
        return f"{what}: {self.error or who}{f', which leads {names}' if names and not self.error else ''}"


def parse(text: str) -> ScriptedFault:
    """Raises FaultError."""
    words = parse_words(text)
    if words.at_s is None:
        raise FaultError(f"{text!r} is not `ACTION ROLE at TIME`: it says no time")
    return ScriptedFault(words.verb, words.role, words.at_s, words.breakage, words.lasts_s, words.request)


def parse_all(texts: Sequence[str]) -> list[ScriptedFault]:
    """In the order of their times. Raises FaultError, also for an `it` without a fault before it."""
    faults = sorted((parse(text) for text in texts), key=lambda fault: fault.at_s)
    if faults and faults[0].role == "it":
        raise FaultError(f"{str(faults[0])!r}: there is no fault before it that `it` could mean")
    return faults


def check(faults: Sequence[ScriptedFault], cluster: Cluster) -> None:
    """Raises FaultError for a fault that this cluster cannot have."""
    for fault in faults:
        reason = why_impossible(fault.words, cluster)
        if reason is not None:
            raise FaultError(f"{str(fault)!r}: {reason}")


def why_impossible(words: Words, cluster: Cluster) -> str | None:
    """Why this cluster cannot have the fault, as far as that is known before it happens."""
    if words.request is not None:
        role = words.request.role
        return cluster.impossible.get(OF_REQUESTS) or (why_impossible(Words("heal", role), cluster) if role else None)
    broker_id = broker_of(words.role)
    if words.verb in cluster.impossible:
        return cluster.impossible[words.verb]
    if words.breakage is not None and (reason := why_not_broken(words.breakage, cluster)) is not None:
        return reason
    if broker_id is not None and broker_id not in cluster.broker_ids:
        ids = ", ".join(map(str, cluster.broker_ids))
        return f"the cluster has no broker {broker_id}; its brokers are {ids}"
    if words.role == "zookeeper":
        if cluster.zookeeper() is None:
            return "the cluster has no ZooKeeper of its own"
        if words.verb == "expire-session":
            return "ZooKeeper has no session of its own"
        if words.verb == "fill-disk":
            return "fill-disk is for brokers"
    if words.breakage is not None:
        try:
            words.breakage.rules(broker_id if words.role != "zookeeper" else None, cluster.broker_ids)
        except FaultError as problem:
            if broker_id is not None or words.role == "zookeeper" or "has no broker" in str(problem):
                return str(problem)
    return None


def why_not_broken(breakage: Breakage, cluster: Cluster) -> str | None:
    """The reason why links of this cluster cannot be broken in this way; None if they can."""
    effect = breakage.effect
    said = {
        "from": breakage != Breakage(),
        "delay": effect.delay_s > 0,
        "throttle": effect.bits_per_s is not None,
        "half": effect.halves,
    }
    return next((reason for word, reason in cluster.impossible.items() if said.get(word)), None)


@dataclass(frozen=True, slots=True)
class _Lasting:
    """A fault that is to be undone `due_s` after the start of its run."""

    due_s: float
    words: Words
    victims: Sequence[Node]


class FaultRun:
    """Carries faults out at their times, in a thread of its own, and heals the cluster at the end."""

    def __init__(
        self,
        cluster: Cluster,
        faults: Sequence[ScriptedFault],
        topics: Sequence[str],
        say: Callable[[DoneFault], None],
        now_ns: Callable[[], int] = time.time_ns,
        record: FaultRecord | None = None,
    ) -> None:
        """`topics`: whose leaders a fault notes. `say` is called with each fault after it was tried. `record`: see `Faulted`."""
        self.done: list[DoneFault] = []
        self._cluster = cluster
        self._faults = Faulted(cluster, topics, now_ns, record)
        self._waiting = list(faults)
        self._lasting: list[_Lasting] = []
        self._say = say
        self._last: list[Node] = []
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="faults")
        self._under_way: list[Future[None]] = []

    @property
    def is_over(self) -> bool:
        """Whether every fault was carried out, and undone if it has an end."""
        return not self._waiting and all(done.done() for done in self._under_way) and not self._lasting

    def step(self, elapsed_s: float) -> None:
        """Starts the faults that are due `elapsed_s` after the start. To be called several times a second."""
        while self._waiting and self._waiting[0].at_s <= elapsed_s:
            self._under_way.append(self._worker.submit(self._carry_out, self._waiting.pop(0)))
        for lasting in [each for each in self._lasting if each.due_s <= elapsed_s]:
            self._lasting.remove(lasting)
            self._under_way.append(self._worker.submit(self._undo, lasting))

    def finish(self) -> None:
        """Waits for the faults under way and heals the cluster. Raises ClusterError, ZooKeeperError, and a bug's exception."""
        self._faults.is_over.set()
        self._worker.shutdown(wait=True)
        if self._under_way:
            self._faults.heal_all()
        for fault in self._under_way:
            fault.result()

    def _carry_out(self, fault: ScriptedFault) -> None:
        rows, victims = self._faults.carry_out(fault.words, self._last)
        self._last = victims
        if victims and fault.lasts_s is not None:
            self._lasting.append(_Lasting(fault.at_s + fault.lasts_s, fault.words, victims))
        for row in rows:
            self._note(row)

    def _undo(self, lasting: _Lasting) -> None:
        for row in self._faults.undo(lasting.words, lasting.victims):
            self._note(row)

    def _note(self, row: DoneFault) -> None:
        self.done.append(row)
        self._say(row)


class Faulted:
    """A cluster, what was done to it, and how that is undone. `is_over`: set it to end a search for a role."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[str],
        now_ns: Callable[[], int] = time.time_ns,
        record: FaultRecord | None = None,
    ) -> None:
        """`record`: where the faults are written down until they are undone; None: nowhere."""
        self.is_over = threading.Event()
        self._cluster = cluster
        self._roles = Roles(cluster)
        self._topics = topics
        self._now_ns = now_ns
        self._record = record

    def carry_out(self, words: Words, last: Sequence[Node] = ()) -> tuple[list[DoneFault], list[Node]]:
        """Returns a row for each victim that was tried, and the victims. `last`: the victims that `it` stands for."""
        begun = self._now_ns()
        if words.request is not None:
            return self._break_requests(words, words.request, begun)
        if not words.role:
            return [DoneFault(words.verb, "everything", None, begun, error=_error_of(self.heal_all))], []
        try:
            led = {
                (topic, number): view.leader
                for topic in self._topics
                for number, view in self._roles.partitions(topic).items()
            }
            victims = self._victims(words, last)
        except ClusterError as problem:
            return [DoneFault(words.verb, words.role, None, begun, error=str(problem))], []
        rows = []
        for victim in victims:
            broker = victim.broker_id
            partitions = sorted(
                partition for partition, leader in led.items() if broker is not None and leader == broker
            )
            row = DoneFault(words.verb, words.role, broker, self._now_ns(), partitions, links=str(words.breakage or ""))
            row.error = self._act(words, victim)
            row.took_s = (self._now_ns() - row.at_ns) / 1e9
            rows.append(row)
        return rows, victims

    def _break_requests(self, words: Words, fault: RequestFault, begun: int) -> tuple[list[DoneFault], list[Node]]:
        """Gives the rule to the brokers that it is for. Those that are not running have no requests."""
        try:
            victims = (
                self._victims(Words("kill", fault.role), ())
                if fault.role
                else [self._cluster.broker(broker) for broker in self._cluster.broker_ids]
            )
            running = [victim for victim in victims if victim.state() is not State.ENDED]
            if not running:
                raise ClusterError("no broker is running")
            rule = fault.rule
            if rule.times and len(running) > 1:
                rule = replace(rule, claims=self._cluster.shared_claims())
        except ClusterError as problem:
            return [DoneFault(words.verb, words.role, None, begun, error=str(problem))], []
        rows = []
        for victim in running:
            row = DoneFault(words.verb, words.role, victim.broker_id, self._now_ns())
            if self._record is not None and rule.effect != CLOSE_IDLE:
                self._record.note(words, victim.broker_id)
            row.error = _error_of(lambda v=victim: v.add_rule(rule))  # type: ignore[misc]
            rows.append(row)
        return rows, running

    def undo(self, words: Words, victims: Sequence[Node]) -> list[DoneFault]:
        """Undoes a fault of these victims; a row `heal` for each."""
        request, undo = words.request, ACTIONS[words.verb].undo if words.request is None else None
        assert request is not None or undo is not None

        def undo_at(victim: Node) -> None:
            if request is not None:
                victim.remove_rules([request.rule.id])
            elif undo is not None:
                undo(victim, words.breakage)

        rows = []
        for victim in victims:
            row = DoneFault("heal", words.role, victim.broker_id, self._now_ns())
            with named_as(words.role):
                row.error = _error_of(lambda v=victim: undo_at(v))  # type: ignore[misc]
            if not row.error:
                self._strike(words, victim.broker_id)
            rows.append(row)
        return rows

    def undo_noted(self, words: Words) -> list[DoneFault]:
        """Undoes this fault as the record has it, also if it was interrupted before its victims were known."""
        said = str(words)
        noted = [row for row in self._record.all() if row.said == said] if self._record is not None else []
        nodes = [self._cluster.zookeeper() if row.broker is None else self._cluster.broker(row.broker) for row in noted]
        return self.undo(words, [node for node in nodes if node is not None])

    def _strike(self, words: Words, broker: int | None) -> None:
        said = str(words)
        if self._record is not None:
            self._record.strike(lambda noted: noted.said == said and noted.broker == broker)

    def heal_all(self) -> None:
        """Raises ClusterError, ZooKeeperError."""
        heal(self._cluster)
        if self._record is not None:
            self._record.strike(lambda _: True)

    def _act(self, words: Words, victim: Node) -> str:
        """Carries the fault out; returns why it failed, or nothing."""
        if self._record is not None and ACTIONS[words.verb].undo is not None:
            self._record.note(words, victim.broker_id)
        with named_as(words.role):
            error = _error_of(lambda: act(words.verb, victim, words.breakage))
        if self._record is not None and words.verb in ("heal", "restart", "resume") and not error:
            healed = words.verb == "heal"
            undone = ("pause",) if words.verb == "resume" else ("kill", "stop")
            self._record.strike(
                lambda noted: noted.broker == victim.broker_id and (healed or noted.words.verb in undone)
            )
        return error

    def _victims(self, words: Words, last: Sequence[Node]) -> list[Node]:
        """Raises ClusterError if nobody has the role within ROLE_TIMEOUT_S, or can have it after UNKNOWN_TIMEOUT_S."""
        if words.role == "it":
            if not last:
                raise ClusterError("the fault before it hit nobody")
            return list(last)
        role = role_of(words.role)
        if role.kind == "zookeeper":
            zookeeper = self._cluster.zookeeper()
            return [] if zookeeper is None else [zookeeper]
        if role.broker is not None:
            return [self._cluster.broker(role.broker)]
        if words.verb in UNDOING:
            return self._those_who_had(words)
        began = time.monotonic()
        while (broker := self._roles.of(role)) is None:
            waited_s = time.monotonic() - began
            why_never = self._roles.why_never(role) if waited_s > UNKNOWN_TIMEOUT_S else None
            if why_never or waited_s > ROLE_TIMEOUT_S or self.is_over.wait(ROLE_RETRY_S):
                raise ClusterError(why_never or f"nobody is {words.role}")
        return [self._cluster.broker(broker)]

    def _those_who_had(self, words: Words) -> list[Node]:
        """The victims of earlier faults of this role; another broker may have it by now. Raises ClusterError."""
        brokers = [] if self._record is None else self._record.brokers_with(words.role)
        if not brokers:
            raise ClusterError(
                f"no fault of {words.role} is waiting to be undone; say `{words.verb} it`, `{words.verb} broker ID` or `heal`"
            )
        return [self._cluster.broker(broker) for broker in dict.fromkeys(brokers) if broker is not None]


def act(verb: str, victim: Node, breakage: Breakage | None = None) -> None:
    """Raises ClusterError, ZooKeeperError, FaultError."""
    ACTIONS[verb].do(victim, breakage)


def _error_of(work: Callable[[], None]) -> str:
    try:
        work()
    except ExpectedError as problem:
        return str(problem)
    return ""
