"""Faults that a person writes down: `kill leader of departures-0 at 20s`, `restart it at 35s` (FAU-1)."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.cluster.processes import ClusterError
from tools.cluster.zookeeper import ZooKeeperError
from tools.faults.cluster import Cluster, Node, Victim
from tools.faults.faults import ACTIONS, heal
from tools.faults.roles import Roles
from tools.points_in_time import NoTime, parse_duration_ms

VERBS = [*ACTIONS, "restart", "resume"]
ROLES = (
    "leader of TOPIC-PARTITION, follower of TOPIC-PARTITION, controller, coordinator of GROUP, broker ID, zookeeper, it"
)
ROLE_RETRY_S = 0.1
ROLE_TIMEOUT_S = 10.0
"""How long a fault waits for a broker that has its role."""

_FAULT = re.compile(rf"(?P<verb>{'|'.join(VERBS)}) (?P<role>.+) at (?P<at>\S+)")
_ROLE = re.compile(
    r"(?P<side>leader|follower) of (?P<topic>\S+)-(?P<partition>\d{1,9})|coordinator of (?P<group>.+)|broker (?P<broker>\d{1,9})"
    r"|controller|zookeeper|it"
)


class FaultError(ValueError):
    """A fault that cannot be read; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """`at_s`: seconds since the start of the replay. `role`: one of ROLES, such as `leader of departures-0`."""

    verb: str
    role: str
    at_s: float

    def __str__(self) -> str:
        return f"{self.verb} {self.role} at {self.at_s:g}s"


@dataclass(slots=True)
class DoneFault:
    """A fault that was tried. `broker`: the broker that it hit; None for ZooKeeper, or if it hit nobody.

    `partitions`: (topic, partition) that the broker led before. `error`: why it failed; empty if it did not.
    """

    verb: str
    role: str
    broker: int | None
    at_ns: int
    """When it started, in nanoseconds since 1970 UTC by the replay's common clock."""
    partitions: list[tuple[str, int]] = field(default_factory=list)
    error: str = ""

    def to_row(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """`kill leader of t-0: broker 2, which leads t-0, t-3`."""
        who = "ZooKeeper" if self.broker is None else f"broker {self.broker}"
        names = ", ".join(f"{topic}-{number}" for topic, number in self.partitions)
        return f"{self.verb} {self.role}: {self.error or who}{f', which leads {names}' if names and not self.error else ''}"


def parse(text: str) -> ScriptedFault:
    """Raises FaultError."""
    match = _FAULT.fullmatch(" ".join(text.split()))
    if match is None:
        raise FaultError(f"{text!r} is not `ACTION ROLE at TIME`; the actions are {', '.join(VERBS)}")
    role = match["role"]
    if _ROLE.fullmatch(role) is None:
        raise FaultError(f"{text!r}: {role!r} is no role; the roles are {ROLES}")
    if match["verb"] in ("restart", "resume") and role != "it" and not role.startswith(("broker ", "zookeeper")):
        raise FaultError(f"{text!r}: a stopped process has no role any more; say `{match['verb']} it` or `broker ID`")
    return ScriptedFault(match["verb"], role, seconds_of(match["at"], text))


def parse_all(texts: Sequence[str]) -> list[ScriptedFault]:
    """In the order of their times. Raises FaultError, also for an `it` without a fault before it."""
    faults = sorted((parse(text) for text in texts), key=lambda fault: fault.at_s)
    if faults and faults[0].role == "it":
        raise FaultError(f"{str(faults[0])!r}: there is no fault before it that `it` could mean")
    return faults


def check(faults: Sequence[ScriptedFault], cluster: Cluster) -> None:
    """Raises FaultError for a fault that this cluster cannot have."""
    for fault in faults:
        reason = cluster.impossible.get(fault.verb)
        broker_id = broker_of(fault.role)
        if broker_id is not None and broker_id not in cluster.broker_ids:
            ids = ", ".join(map(str, cluster.broker_ids))
            reason = f"the cluster has no broker {broker_id}; its brokers are {ids}"
        elif fault.role == "zookeeper" and cluster.zookeeper() is None:
            reason = "the cluster has no ZooKeeper of its own"
        elif fault.role == "zookeeper" and fault.verb == "expire-session":
            reason = "ZooKeeper has no session of its own"
        if reason is not None:
            raise FaultError(f"{str(fault)!r}: {reason}")


def broker_of(role: str) -> int | None:
    """2 for `broker 2`; None for other roles."""
    match = _ROLE.fullmatch(role)
    return int(match["broker"]) if match is not None and match["broker"] else None


def seconds_of(text: str, where: str) -> float:
    """`1h30m`, `20s`, `500ms` in seconds. Raises FaultError."""
    try:
        return parse_duration_ms(text) / 1000
    except NoTime as problem:
        raise FaultError(f"{where!r}: {problem}") from None


class FaultRun:
    """Carries faults out at their times, in a thread of its own, and heals the cluster at the end."""

    def __init__(
        self,
        cluster: Cluster,
        faults: Sequence[ScriptedFault],
        topics: Sequence[str],
        say: Callable[[DoneFault], None],
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`topics`: whose leaders a fault notes. `say` is called with each fault after it was tried."""
        self.done: list[DoneFault] = []
        self._cluster = cluster
        self._roles = Roles(cluster)
        self._waiting = list(faults)
        self._topics = topics
        self._say = say
        self._now_ns = now_ns
        self._last: list[Node] = []
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="faults")
        self._under_way: list[Future[None]] = []
        self._is_over = threading.Event()

    def step(self, elapsed_s: float) -> None:
        """Starts the faults that are due `elapsed_s` after the start. To be called several times a second."""
        while self._waiting and self._waiting[0].at_s <= elapsed_s:
            self._under_way.append(self._worker.submit(self._carry_out, self._waiting.pop(0)))

    def finish(self) -> None:
        """Waits for the faults under way and heals the cluster. Raises ClusterError, ZooKeeperError, and a bug's exception."""
        self._is_over.set()
        self._worker.shutdown(wait=True)
        if self._under_way:
            heal(self._cluster)
        for fault in self._under_way:
            fault.result()

    def _carry_out(self, fault: ScriptedFault) -> None:
        begun = self._now_ns()
        try:
            led = {
                (topic, number): view.leader
                for topic in self._topics
                for number, view in self._roles.partitions(topic).items()
            }
            victims = self._victims(fault.role)
        except ClusterError as problem:
            self._last = []
            self._note(DoneFault(fault.verb, fault.role, None, begun, error=str(problem)))
            return
        for victim in victims:
            broker = victim.broker_id
            partitions = sorted(
                partition for partition, leader in led.items() if broker is not None and leader == broker
            )
            row = DoneFault(fault.verb, fault.role, broker, self._now_ns(), partitions)
            try:
                act(fault.verb, victim)
            except (ClusterError, ZooKeeperError) as problem:
                row.error = str(problem)
            self._note(row)
        self._last = victims

    def _note(self, row: DoneFault) -> None:
        self.done.append(row)
        self._say(row)

    def _victims(self, role: str) -> list[Node]:
        """Raises ClusterError if nobody has the role within ROLE_TIMEOUT_S."""
        if role == "it":
            if not self._last:
                raise ClusterError("the fault before it hit nobody")
            return self._last
        deadline = time.monotonic() + ROLE_TIMEOUT_S
        while not (found := self._now(role)):
            if time.monotonic() > deadline or self._is_over.wait(ROLE_RETRY_S):
                raise ClusterError(f"nobody is {role}")
        return found

    def _now(self, role: str) -> list[Node]:
        match = _ROLE.fullmatch(role)
        assert match is not None
        groups: Mapping[str, str | None] = match.groupdict()
        if role == "zookeeper":
            zookeeper = self._cluster.zookeeper()
            return [] if zookeeper is None else [zookeeper]
        broker = broker_of(role)
        if broker is not None:
            return [self._cluster.broker(broker)]
        if groups["topic"] and groups["partition"]:
            find = self._roles.leader if groups["side"] == "leader" else self._roles.follower
            broker = find(groups["topic"], int(groups["partition"]))
        elif groups["group"]:
            broker = self._roles.coordinator(groups["group"])
        else:
            broker = self._roles.controller()
        return [] if broker is None else [self._cluster.broker(broker)]


def act(verb: str, victim: Victim) -> None:
    """Raises ClusterError, ZooKeeperError."""
    if verb == "restart":
        victim.start()
    elif verb == "resume":
        victim.resume()
    else:
        ACTIONS[verb].do(victim)
