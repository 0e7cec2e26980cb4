"""What happens in one simulated history: a function of the seed, which a YAML file can change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from random import Random
from typing import Any

import yaml

from protocol.kafka.api_keys import ApiLevel
from tools.sim.sequences import RARE, SEQUENCES, SYNCED, Order

BROKERS = (1, 2, 3)
CONTROLLER, LEADER = -1, -2
"""In the place of a broker: whoever is the controller then, or leads the first partition of the load."""
GROUP_COORDINATOR, TRANSACTION_COORDINATOR = -3, -4
"""Who coordinates the group of the members, or the first transactional producer."""
FOLLOWER, OTHER = -5, -6
"""The first and the last of the replicas of that partition that do not lead it."""
GROUP_FOLLOWER, GROUP_OTHER, TRANSACTION_FOLLOWER, TRANSACTION_OTHER = -7, -8, -9, -10
"""Those of a coordinator's partition."""
FOLLOWERS: Mapping[int, tuple[int, int]] = {
    FOLLOWER: (LEADER, 0),
    OTHER: (LEADER, -1),
    GROUP_FOLLOWER: (GROUP_COORDINATOR, 0),
    GROUP_OTHER: (GROUP_COORDINATOR, -1),
    TRANSACTION_FOLLOWER: (TRANSACTION_COORDINATOR, 0),
    TRANSACTION_OTHER: (TRANSACTION_COORDINATOR, -1),
}
"""Whom they follow, and their place among the followers."""
OUTSIDER, GROUP_OUTSIDER, TRANSACTION_OUTSIDER = -11, -12, -13
OUTSIDERS: Mapping[int, int] = {
    OUTSIDER: LEADER,
    GROUP_OUTSIDER: GROUP_COORDINATOR,
    TRANSACTION_OUTSIDER: TRANSACTION_COORDINATOR,
}
"""A broker without a replica of the partition that the other leads, if there is one."""
ROLES: Mapping[int, Mapping[str, int]] = {
    leader: {
        "CONTROLLER": CONTROLLER,
        "LEADER": leader,
        **dict(zip(("FOLLOWER", "OTHER"), (one for one, of in FOLLOWERS.items() if of[0] == leader), strict=True)),
        "OUTSIDER": next(one for one, of in OUTSIDERS.items() if of == leader),
    }
    for leader in (LEADER, GROUP_COORDINATOR, TRANSACTION_COORDINATOR)
}
"""Whom a sequence means: it is about the first partition of the load, or about that of a coordinator."""
ABOUT: Mapping[str, int] = {"group": GROUP_COORDINATOR, "transaction": TRANSACTION_COORDINATOR}
"""What an order of faults may be about."""
SHARE_OF_FEW = 0.75
"""So many seeds have one to three sequences, over and over; the others have all of them."""
SHARE_OF_RARE = 0.08
"""So many seeds have one of the rare sequences alone."""
SHARE_OF_NEW_GROUPS, SHARE_OF_MIXED_GROUPS = 0.4, 0.35
"""At level 4: so many seeds have members of the new protocol only, and so many have both kinds in one group."""
GROUP, TRANSACTIONAL_ID = "group", "transactional0"
STRETCH, JITTER = (0.8, 1.25), (0.95, 1.05)
"""The times of a sequence of faults are stretched or shortened by that, and each duration a little more."""
SECONDS_MAX = 86_400
FAULTS = (
    KILL := "kill",
    POWER := "lose power",
    PAUSE := "pause",
    CUT := "cut off",
    ONE_WAY := "cut one way",
    CUT_BROKERS := "cut from other brokers",
    CUT_ZOOKEEPER := "cut from ZooKeeper",
    CUT_CONTROLLER := "cut from the controller",
    EXPIRE := "expire the session",
    RESET := "break the connection to ZooKeeper",
    ZOOKEEPER_PAUSE := "pause ZooKeeper",
    SLOW_DISK := "slow disk",
    RESTART := "restart",
    RESTART_AND_POWER := "restart and lose power",
    FULL_DISK := "full disk",
    FAILING_DISK := "failing disk",
    SCARCE := "scarce descriptors",
    FLIP := "flip a bit",
    CLOCK := "wrong clock",
    RESETS := "reset connections",
    LOST_ANSWER := "lose an answer of ZooKeeper",
    SLOW_LINKS := "slow links",
    EMPTY_DISK := "empty the disk",
    MOVE := "move the replica",
    CUT_CLIENTS := "cut from clients",
    CUT_LEADER := "cut from the leader",
    SLOW_BROKERS := "slow links to brokers",
    ELECT := "elect",
    FEW_FILES := "few open files",
)
"""ELECT: the broker comes first in the partition's assignment, and `lasts` later it is elected, while the leader lives."""
NOT_ALONE = (RESTART_AND_POWER, FEW_FILES)
"""These are drawn apart, or come in sequences only."""
API_LEVEL, LEVEL_4 = "broker.api.level", ApiLevel.KAFKA_4.value
SETTINGS: Mapping[str, str] = {
    "zookeeper.session.timeout.ms": "4000",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.wait.max.ms": "1000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "controller.socket.timeout.ms": "2000",
    "replica.socket.timeout.ms": "3000",
    "controlled.shutdown.enable": "true",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "100",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "leader.imbalance.check.interval.seconds": "5",
    "log.retention.check.interval.ms": "2000",
    "log.cleaner.backoff.ms": "1000",
    API_LEVEL: ApiLevel.KAFKA_3_9.value,  # a plan may set the other one
}
SMALL_SEGMENTS: Mapping[str, str] = {
    "offsets.topic.segment.bytes": "10000",
    "transaction.state.log.segment.bytes": "10000",
}
"""With them, the logs of groups and transactions are compacted within a history."""
MOVES_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""With it, readers of a rack read from the replica there. The name is a literal: a worker sets its cores before it imports the broker."""
NEW_SEGMENTS: Mapping[str, str] = {"segment.bytes": "250000", "segment.ms": "3000"}
"""A segment must have room for the largest batch."""
COMPACTED: Mapping[str, str] = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", **NEW_SEGMENTS}
CONFIGS: Sequence[Mapping[str, str]] = (
    COMPACTED,
    {**COMPACTED, "delete.retention.ms": "86400000"},
    {**COMPACTED, "delete.retention.ms": "1000"},
    {"retention.bytes": "20000", **NEW_SEGMENTS},
    {"retention.ms": "8000", **NEW_SEGMENTS},
)
LOG_DIRS_MAX = 2
SENT_FROM_FILE = 2_000
"""Clients of the world ask for a few kilobytes."""
PRODUCER_EPOCHS = 32_767
FEW_EPOCHS = 6
LATER_KEYS: Mapping[str, Any] = {
    "aiokafka": 0,
    "processors": 0,
    "new_members": 0,
    "second_instances": 0,
    "remakes": False,
    "log_dirs": 1,
    "pauses": 1.0,
    "sent_from_file": SENT_FROM_FILE,
    "producer_epochs": PRODUCER_EPOCHS,
    "configs": {},
}
"""Plans of earlier versions do not have these."""
CLIENTS = (
    "aiokafka",
    "processors",
    "second_instances",
    "transactional",
    "new_members",
    "members",
    "readers",
    "producers",
)
"""The keys of a plan that are numbers of clients."""


@dataclass(frozen=True)
class Fault:
    """`at`: seconds from the start of the load; it is undone `lasts` seconds later. `broker`: whom it hits; 0 for ZooKeeper.

    CONTROLLER and LEADER name a broker by what it is at that moment.
    """

    at: float
    what: str
    broker: int
    lasts: float


@dataclass(frozen=True)
class Plan:
    """`seconds`: how long the load and the faults last; what is started is ended afterwards."""

    seed: int
    seconds: float
    partitions: Mapping[str, int]
    replicas: int
    producers: int
    transactional: int
    readers: int
    members: int
    has_admin: bool
    faults: Sequence[Fault] = ()
    aiokafka: int = 0
    """So many producers (every second one transactional) and members of a group are of aiokafka. One more reads what is committed."""
    processors: int = 0
    """Members of a group that write what they read, and commit the offsets in the same transactions."""
    new_members: int = 0
    """Members of the same group as `members` that use the new protocol (KIP-848). It is converted while it lives if there are both."""
    second_instances: int = 0
    """So many transactional producers have a second instance with their transactional id: each fences the other."""
    remakes: bool = False
    """The admin often deletes topics and makes them again, and transactions have partitions of them."""
    log_dirs: int = 1
    """Of each broker. If there are two, the admin moves replicas between them."""
    pauses: float = 1.0
    """Clients and the admin pause so many times as long between their requests."""
    sent_from_file: int = SENT_FROM_FILE
    """Records with so many bytes, or more, are sent from their file."""
    producer_epochs: int = PRODUCER_EPOCHS
    """The last epoch of a transactional producer. With few of them, it often gets a new producer id."""
    settings: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Topic -> its own settings."""


class BrokenPlan(ValueError):
    """A file that is no plan. The text says why."""


def to_yaml(plan: Plan) -> str:
    """The plan for people, and for `from_yaml`."""
    rows = asdict(plan)
    rows["faults"] = [f"{fault.what} {fault.broker} at {fault.at} for {fault.lasts}" for fault in plan.faults]
    text: str = yaml.safe_dump(rows, sort_keys=False)
    return text


def from_yaml(text: str) -> Plan:
    """Raises BrokenPlan, YAMLError."""
    rows = yaml.safe_load(text)
    names = [one.name for one in fields(Plan)]
    if isinstance(rows, dict):
        rows = {**LATER_KEYS, **rows}
    if not isinstance(rows, dict) or set(rows) != set(names):
        raise BrokenPlan(f"a plan has exactly these keys: {', '.join(names)}")
    for name, (kind, words) in KINDS.items():
        if not isinstance(rows[name], kind) or isinstance(rows[name], bool) is not (kind is bool):
            raise BrokenPlan(f"{name} is {words}, not {rows[name]!r}")
    counts = [rows[name] for name in CLIENTS]
    if min(counts) < 0 or not 1 <= rows["replicas"] <= len(BROKERS) or not 0 < rows["seconds"] <= SECONDS_MAX:
        raise BrokenPlan(
            "numbers of clients are not negative, replicas are 1 to 3, seconds are above 0 and at most a day"
        )
    if not 2 <= rows["producer_epochs"] <= PRODUCER_EPOCHS:
        raise BrokenPlan(f"producer_epochs are 2 to {PRODUCER_EPOCHS}, not {rows['producer_epochs']}")
    if rows["new_members"] and rows["settings"].get(API_LEVEL) != LEVEL_4:
        raise BrokenPlan(f"new_members need {API_LEVEL}: '{LEVEL_4}' in the settings")
    if not 1 <= rows["log_dirs"] <= LOG_DIRS_MAX:
        raise BrokenPlan(f"log_dirs are 1 or {LOG_DIRS_MAX}, not {rows['log_dirs']}")
    if not all(type(count) is int and count > 0 for count in rows["partitions"].values()) or not rows["partitions"]:
        raise BrokenPlan(f"partitions are topic: number, not {rows['partitions']!r}")
    if not all(topic in rows["partitions"] and isinstance(of, dict) for topic, of in rows["configs"].items()):
        raise BrokenPlan(f"configs are topic: its settings, for topics of the plan, not {rows['configs']!r}")
    faults = []
    for line in rows["faults"]:
        fault = fault_in(str(line))
        if fault is None:
            raise BrokenPlan(f"{line!r} is no fault such as 'kill 2 at 1.5 for 3'; faults are {', '.join(FAULTS)}")
        faults.append(fault)
    return Plan(**{**rows, "faults": tuple(faults)})


def fault_in(line: str) -> Fault | None:
    """None if it is none."""
    match = FAULT_LINE.fullmatch(line)
    if not match or match["what"] not in FAULTS or int(match["broker"]) not in hit_by(match["what"]):
        return None
    return Fault(float(match["at"]), match["what"], int(match["broker"]), float(match["lasts"]))


def in_sequence(lines: Sequence[str], at: float, random: Random, leader: int = LEADER) -> Iterator[Fault]:
    """The faults of a sequence that begins at that time, about what that role leads."""
    stretch = random.uniform(*STRETCH)
    for line in lines:
        for role, number in ROLES[leader].items():
            line = line.replace(role, str(number))
        fault = fault_in(line)
        assert fault is not None, line
        lasts = fault.lasts * stretch * random.uniform(*JITTER)
        yield replace(fault, at=round(at + fault.at * stretch, 3), lasts=round(lasts, 3))


def led_by(broker: int) -> int:
    """The role whose partition is meant by that number in the place of a broker."""
    return broker if broker in ROLES else OUTSIDERS.get(broker, FOLLOWERS.get(broker, (LEADER, 0))[0])


def hit_by(what: str) -> Sequence[int]:
    """The numbers that a fault may have."""
    everybody = (*BROKERS, CONTROLLER, *ROLES, *FOLLOWERS, *OUTSIDERS)
    return (0,) if what == ZOOKEEPER_PAUSE else everybody


KINDS: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(("seed", "replicas", "log_dirs", "sent_from_file", "producer_epochs", *CLIENTS), (int, "a number")),
    **dict.fromkeys(("seconds", "pauses"), ((int, float), "a number")),
    **dict.fromkeys(("has_admin", "remakes"), (bool, "true or false")),
    "partitions": (dict, "topic: number of partitions"),
    "settings": (dict, "setting: value"),
    "configs": (dict, "topic: its settings"),
    "faults": (list, "a list"),
}
FAULT_LINE = re.compile(r"(?P<what>[A-Za-z ]+) (?P<broker>-?\d+) at (?P<at>\d+(\.\d+)?) for (?P<lasts>\d+(\.\d+)?)")


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the largest steps first: fewer faults, clients, partitions, a shorter time."""
    faults = plan.faults
    half = len(faults) // 2
    if half:
        yield replace(plan, faults=faults[:half])
        yield replace(plan, faults=faults[half:])
    for at in range(len(faults)):
        yield replace(plan, faults=(*faults[:at], *faults[at + 1 :]))
    if plan.has_admin:
        yield replace(plan, has_admin=False, remakes=False)
    if plan.remakes:
        yield replace(plan, remakes=False)
    if plan.log_dirs > 1:
        yield replace(plan, log_dirs=1)
    for name in CLIENTS:
        count = getattr(plan, name)
        for fewer in dict.fromkeys((0, count - 1)) if count else ():
            changed: dict[str, Any] = {name: fewer}
            yield replace(plan, **changed)
    if len(plan.partitions) > 1:
        for topic in plan.partitions:
            yield replace(
                plan,
                partitions={name: count for name, count in plan.partitions.items() if name != topic},
                configs={name: of for name, of in plan.configs.items() if name != topic},
            )
    for topic, count in plan.partitions.items():
        if count > 1:
            yield replace(plan, partitions={**plan.partitions, topic: 1})
    if plan.seconds > 10:
        yield replace(plan, seconds=plan.seconds / 2, faults=tuple(f for f in faults if f.at < plan.seconds / 2))
    if plan.pauses != 1.0:
        yield replace(plan, pauses=1.0)
    if plan.producer_epochs != PRODUCER_EPOCHS:
        yield replace(plan, producer_epochs=PRODUCER_EPOCHS)
    for topic in plan.configs:
        yield replace(plan, configs={name: of for name, of in plan.configs.items() if name != topic})
    for key in plan.settings:
        if key == API_LEVEL and plan.new_members:
            continue
        yield replace(plan, settings={name: value for name, value in plan.settings.items() if name != key})


def plan_of(seed: int, seconds: float = 60.0) -> Plan:
    """The plan of that seed: a random subset of the faults, and random numbers of everything."""
    random = Random(f"plan {seed}")
    is_hasty = random.random() < 0.25
    partitions = {
        f"topic{number}": random.randint(1, 2 if is_hasty else 4)
        for number in range(1 if is_hasty else random.randint(1, 3))
    }
    plan = Plan(
        seed,
        seconds,
        partitions=partitions,
        replicas=random.choice((3, 3, 2)),
        producers=1 if is_hasty else random.randint(1, 2),
        transactional=random.choice((0, 1, 2)),
        readers=random.randint(1, 2),
        members=random.choice((0, 2, 3)),
        has_admin=random.random() < 0.5,
        configs={topic: dict(random.choice(CONFIGS)) for topic in partitions if random.random() < 0.3},
        pauses=0.25 if is_hasty else 1.0,
    )
    plan = replace(
        plan,
        processors=random.choice((1, 1, 2, 3)) if random.random() < 0.3 else 0,
        second_instances=random.randint(1, plan.transactional) if plan.transactional and random.random() < 0.4 else 0,
        remakes=plan.has_admin and plan.transactional > 0 and random.random() < 0.5,
    )
    sequences: Sequence[Order] = SEQUENCES
    settings: dict[str, str] = {}
    if random.random() < SHARE_OF_FEW:
        sequences = random.sample(SEQUENCES, random.choice((1, 2, 2, 3)))
    rare = Random(f"rare {seed}")  # of its own: the plans of the other seeds stay as they are
    is_rare = rare.random() < SHARE_OF_RARE
    if is_rare:
        sequences = [rare.choice(RARE)]
    if sequences is not SEQUENCES:
        for sequence in sequences:
            plan = with_needs(plan, sequence.needs)
    coordinators = [GROUP_COORDINATOR] * (plan.members > 0) + [TRANSACTION_COORDINATOR] * (plan.transactional > 0)
    faults = _faults(sequences, coordinators, seconds, random, only_sequences=is_rare)
    if random.random() < 0.4:
        settings["log.segment.bytes"] = random.choice(("250000", "1000000"))
    if random.random() < 0.3:
        settings["broker.fast.failure.detection"] = "false"
    if random.random() < 0.3:
        # Else a new election soon makes good what a broker was not told.
        settings["auto.leader.rebalance.enable"] = "false"
    if random.random() < 0.2:
        settings["replica.fetch.max.bytes"] = "1"  # replicas copy batch by batch
    if any(fault.what == POWER for fault in faults) or random.random() < 0.1:
        settings |= SYNCED
    if random.random() < 0.3:
        settings |= SMALL_SEGMENTS
    if random.random() < 0.4:
        settings["replica.selector.class"] = SELECTOR
    if random.random() < 0.25:
        faults.append(
            Fault(round(random.uniform(2, max(3, seconds / 2)), 3), RESTART_AND_POWER, random.choice(BROKERS), 1.0)
        )
        settings |= SYNCED
    level = Random(f"level {seed}")  # of its own, too
    if level.random() < 0.5:
        settings[API_LEVEL] = LEVEL_4
        plan = with_new_members(plan, Random(f"new members {seed}"))
    if level.random() < 0.3:
        plan = replace(plan, producer_epochs=FEW_EPOCHS)
    log_dirs = plan.log_dirs
    if random.random() < 0.35 or log_dirs > 1:
        log_dirs = LOG_DIRS_MAX
        settings |= random.choice(({}, {MOVES_RATE: "100000"}, {MOVES_RATE: "1000000"}))
    return replace(plan, faults=tuple(faults), settings={**settings, **plan.settings}, log_dirs=log_dirs)


def with_new_members(plan: Plan, random: Random) -> Plan:
    """All of the group's members use the new protocol, or some of them, or none."""
    share = random.random()
    if plan.members and share < SHARE_OF_NEW_GROUPS:
        return replace(plan, members=0, new_members=plan.members)
    if plan.members and share < SHARE_OF_NEW_GROUPS + SHARE_OF_MIXED_GROUPS:
        return replace(plan, new_members=random.randint(1, 2))
    if not plan.members and share < SHARE_OF_NEW_GROUPS:
        return replace(plan, new_members=random.randint(2, 3))
    return plan


def with_needs(plan: Plan, needs: Mapping[str, Any]) -> Plan:
    """The plan with what a sequence needs."""
    for key, value in needs.items():
        had = getattr(plan, key)
        changed: dict[str, Any] = {
            key: {**had, **value} if key == "settings" else max(had, value) if key in CLIENTS else value
        }
        plan = replace(plan, **changed)
    return plan


def _faults(
    sequences: Sequence[Order], coordinators: Sequence[int], seconds: float, random: Random, *, only_sequences: bool
) -> list[Fault]:
    """Single faults of some kinds, and sequences: of all kinds, or in some seeds of a few, over and over."""
    kinds = [what for what in FAULTS if what not in NOT_ALONE and random.random() < 0.5]
    share_of_sequences = random.choice((0.0, 0.5, 1.0) if sequences is SEQUENCES else (0.5, 1.0, 1.0, 1.0))
    if only_sequences:
        share_of_sequences = 1.0
    share_of_coordinators = random.choice((0.0, 0.5)) if coordinators else 0.0
    faults: list[Fault] = []
    at = random.uniform(1, 4)
    while kinds and at < seconds - 4:
        leader = random.choice(coordinators) if random.random() < share_of_coordinators else LEADER
        if random.random() < share_of_sequences:
            sequence = random.choice(sequences)
            faults += in_sequence(sequence.faults, at, random, ABOUT.get(sequence.about, leader))
            at = max(fault.at for fault in faults) + random.uniform(1.0, 5.0)
            continue
        what = random.choice(kinds)
        broker = 0 if what == ZOOKEEPER_PAUSE else random.choice((*BROKERS, CONTROLLER, leader, leader))
        lasts = random.choice((0.3, 2.0, 5.0, 9.0)) * random.uniform(0.5, 1.5)
        faults.append(Fault(round(at, 3), what, broker, round(lasts, 3)))
        at += random.choice((0.2, 2.0, 6.0)) + random.expovariate(0.4)
    return faults
