"""What each kind of event means, in a sentence, with the rule that it comes from. Pure, but for the table that it reads.

`SENTENCES` has a function for every kind in docs/EVENTS.md. It gets the event and what the story knows so far, and says one thing,
several, or nothing. sentences.yaml has the kinds for which one sentence with the event's fields is enough. Things that one broker does
to many partitions are said once: see `Said.key`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from protocol.types import NO_LEADER
from tools.timeline import words
from tools.timeline.merging import Event

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TABLE = Path(__file__).with_name("sentences.yaml")
OPERATOR = "you"
"""Who does what `faults.jsonl` says: a person, or a program such as `ottla demo`."""

SayWhat = Callable[[Sequence[str], int], str]
"""(names of all the things that were joined, their number) -> the sentence."""


@dataclass(frozen=True, slots=True)
class Said:
    """One line of the story. Lines with the same `key`, of one broker and close together, become one, and their `names` are joined.

    `count` is the number of things that are counted and not named.
    """

    text: SayWhat
    rule: str
    key: tuple[object, ...]
    partitions: tuple[str, ...] = ()
    brokers: tuple[int, ...] = ()
    count: int = 0
    as_controller: bool = False
    is_trigger: bool = False
    """A failure may begin here."""


@dataclass(slots=True)
class KnownPartition:
    """What the events told of one partition so far."""

    leader: int | None = None
    """None: no event named one; NO_LEADER: nobody leads."""
    isr: tuple[int, ...] = ()
    leader_at: dict[int, int] = field(default_factory=dict)
    """Broker -> whom that broker takes for the leader."""
    began: tuple[int, int] | None = None
    """(leader epoch, high watermark with which its leader began), until the high watermark has moved."""

    def is_led(self, leader: int, isr: tuple[int, ...]) -> None:
        self.leader, self.isr = leader, isr


@dataclass(slots=True)
class Known:
    """What the events told so far: the controller, and the partitions of the topics that exist."""

    controller: int | None = None
    elected_ms: float | None = None
    """When the controller was elected."""
    partitions: dict[str, KnownPartition] = field(default_factory=dict)

    def of(self, partition: str) -> KnownPartition:
        return self.partitions.setdefault(partition, KnownPartition())

    def led_by(self, broker: int | None) -> list[str]:
        return sorted(name for name, found in self.partitions.items() if broker is not None and found.leader == broker)

    def forget_topics(self, topics: Collection[str]) -> None:
        """A topic of the same name that is made later is another topic."""
        gone = [name for name in self.partitions if words.topic_of(name) in topics]
        for name in gone:
            del self.partitions[name]


Sentence = Callable[[Event, Known], Iterable[Said]]


def one(text: str, rule: str, *, partitions: Sequence[str] = (), **more: Any) -> list[Said]:
    """One line that is not joined with others unless it is the same."""
    return [Said(lambda names, count: text, rule, (text,), tuple(partitions), **more)]


def of_partitions(
    before: str, rule: str, partitions: Sequence[str], after: str = "", *, more: int = 0, **options: Any
) -> Said:
    """`before` + the partitions + `after`. Lines that differ only in their partitions are joined."""
    return Said(
        lambda names, count: f"{before} {words.partitions(names, count)}{after}",
        rule,
        (before, after),
        tuple(partitions),
        count=more,
        **options,
    )


def _nothing(event: Event, known: Known) -> list[Said]:
    return []


def _ints(value: Any) -> tuple[int, ...]:
    return tuple(each for each in value if isinstance(each, int)) if isinstance(value, list) else ()


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


# -- what was done to the cluster -------------------------------------------------------------------------------------


_NAMED_BY_ID = ("broker ", "zookeeper", "it")
"""Roles that say no more than the broker's id."""


def _victim(event: Event) -> str:
    """`broker 2`, or `broker 2 (leader of orders-0)` if it was named by this role; `ZooKeeper`."""
    name, role = _victim_by_id(event), event.row.get("role")
    return f"{name} ({role})" if isinstance(role, str) and not role.startswith(_NAMED_BY_ID) else name


def _victim_by_id(event: Event) -> str:
    broker = event.row.get("broker")
    return "ZooKeeper" if broker is None else f"broker {broker}"


def _roles(broker: Any, known: Known) -> str:
    """`is the controller and leads orders-0`; empty if it is neither controller nor leader."""
    led = known.led_by(broker)
    roles = ["is the controller"] if broker is not None and broker == known.controller else []
    roles += [f"leads {words.partitions(led)}"] if led else []
    return " and ".join(roles)


_SILENCES = {"in": ", one way: it hears nothing", "out": ", one way: nobody hears it"}


def _links_broken(event: Event, known: Known) -> list[Said]:
    row = event.row
    broker, others, effects = row.get("broker"), row.get("others") or (), _texts(row.get("effects"))
    ids = _ints(others)
    ends = [words.brokers(ids)] if ids else []
    ends += ["ZooKeeper"] if "zookeeper" in others else []
    control = ", for control requests only" if row.get("only_control") else ""
    what = "cut" if not effects else ", ".join(map(_effect, effects)) + ":"
    text = f"{what} the links of {_victim(event)} to {' and '.join(ends)}{control}"
    text += _SILENCES.get(str(row.get("direction")), "")
    if roles := _roles(broker, known):
        text += f". Broker {broker} {roles}"
    kinds = {effect.partition(" ")[0] for effect in effects}
    rules = {
        "FLT-11": row.get("only_control"),
        "FLT-18": "half" in kinds,
        "FLT-15": "reset" in kinds,
        "FLT-17": kinds,
        "FLT-21": broker is None,
        "FLT-10": "zookeeper" in others,
        "FLT-12": row.get("direction") in _SILENCES,
    }
    rule = next((rule for rule, applies in rules.items() if applies), "FLT-9")
    return one(text, rule, partitions=known.led_by(broker) if broker is not None else (), is_trigger=True)


def _effect(words_of_effect: str) -> str:
    """`delay by 100ms` for `delay 100ms`."""
    name, _, value = words_of_effect.partition(" ")
    texts = {
        "delay": f"delay by {value}",
        "throttle": f"throttle to {value} per second",
        "reset": "reset connections",
        "half": "reset connections half-way through a message",
    }
    return texts.get(name, words_of_effect)


def _links_joined(event: Event, known: Known) -> list[Said]:
    links = event.row.get("links")
    which = "all its broken links" if links is None else f"the links that were broken {links}"
    return one(f"heal {_victim_by_id(event)}: join {which}", "FAU-2")


# -- the controller ---------------------------------------------------------------------------------------------------


def _controller_known(event: Event, known: Known) -> list[Said]:
    controller = event.row.get("controller")
    if controller is None or controller == event.broker:
        return []  # the event `controller_elected` says more
    return one(f"learns that broker {controller} is the controller", "CTL-1")


def _controller_elected(event: Event, known: Known) -> list[Said]:
    known.controller, known.elected_ms = event.broker, event.at_ms
    return one(
        "is the first to create /controller in ZooKeeper, and so is the controller. Step 1: raises the controller epoch to "
        f"{event.row.get('controller_epoch')}, in the same write",
        "CTL-1, CTL-2",
        as_controller=True,
    )


def _controller_step(event: Event, known: Known) -> list[Said]:
    row, step = event.row, event.row.get("step")
    brokers = words.brokers(_ints(row.get("brokers")))
    partitions, waiting = row.get("partitions", 0), row.get("waiting_for_leader", 0)
    watched = "brokers, topics, reassignments, elections" + (", deletions" if row.get("deletions") else "")
    pending = [
        words.count(row.get("reassignments") or 0, "reassignment"),
        words.count(row.get("preferred_elections") or 0, "preferred election"),
        words.count(row.get("deletions") or 0, "deletion"),
    ]
    texts = {
        2: f"sets its watches, so that ZooKeeper reports every change of {watched}; {brokers} are registered",
        3: f"reads everything from ZooKeeper: {words.count(row.get('topics') or 0, 'topic')}, "
        f"{words.count(partitions, 'partition')}, {brokers}",
        4: f"informs {brokers} about the whole cluster (UpdateMetadata)",
        5: f"starts the state machines of partitions and replicas: {words.count(waiting, 'partition')} "
        f"{'has' if waiting == 1 else 'have'} no live leader",
        6: f"sends every leadership to {brokers} (LeaderAndIsr)",
        7: f"continues what the last controller left: {pending[0]}, {pending[1]}, {pending[2]}",
    }
    text = texts.get(step, str(row.get("what"))) if isinstance(step, int) else str(row.get("what"))
    return one(f"Step {step}: {text}", "CTL-2", as_controller=True)


def _controller_in_office(event: Event, known: Known) -> list[Said]:
    since = "" if known.elected_ms is None else f", {(event.at_ms - known.elected_ms) / 1000:.3f} s after its election"
    return one(f"is in office{since}", "CTL-2", as_controller=True)


def _controller_resigned(event: Event, known: Known) -> list[Said]:
    if known.controller == event.broker:
        known.controller = None
    return one(f"is no longer the controller: {event.row.get('reason')}", "CTL-1, STA-4")


def _brokers_changed(event: Event, known: Known) -> list[Said]:
    gone, came, bounced = (_ints(event.row.get(name)) for name in ("gone", "came", "bounced"))
    said = []
    left = [broker for broker in gone if broker not in bounced]
    new = [broker for broker in came if broker not in bounced]
    if left:
        text = f"sees in ZooKeeper that {words.brokers(left)} {'is' if len(left) == 1 else 'are'} gone"
        said += one(text, "CTL-5", as_controller=True, is_trigger=True)
    if bounced:
        text = f"sees that {words.brokers(bounced)} died and came back: the broker epoch is another one"
        said += one(text, "CTL-5, STA-3", as_controller=True, is_trigger=True)
    if new:
        said += one(f"sees in ZooKeeper that {words.brokers(new)} came", "STA-1", as_controller=True)
    return said


NEW_PARTITION = "new partition"
RULE_OF_REASON: Mapping[str, str] = MappingProxyType(
    {
        NEW_PARTITION: "CTL-6",
        "controlled shutdown": "STA-2",
        "preferred election": "CTL-12",
        "rebalance": "CTL-12",
        "reassignment": "CTL-10",
        "reassignment changed": "CTL-10",
        "reassigned": "CTL-10",
        "log directory failure": "LOG-6",
        "log missing": "FLT-33",
        "dead member in the ISR": "INV-14",
        "bounced before this term": "CTL-5, BUG-16",
    }
)
"""The reason of an election -> its rule. Every other reason is CTL-5's."""


def _leader_elected(event: Event, known: Known) -> Iterator[Said]:
    """Rows: [partition, leader, leader epoch, ISR, version of the znode]."""
    reason = str(event.row.get("reason"))
    rule = RULE_OF_REASON.get(reason, "CTL-5")
    for row in event.row.get("partitions") or ():
        partition, leader, isr = str(row[0]), row[1], tuple(row[3])
        if reason == NEW_PARTITION:
            known.partitions.pop(partition, None)  # the end of an earlier topic of that name may not have been written
        found = known.of(partition)
        before, isr_before = found.leader, found.isr
        found.is_led(leader, isr)
        options: dict[str, Any] = {"as_controller": True}
        if leader == NO_LEADER:
            after = f": no live replica is in the ISR {words.isr(isr)}. Nobody leads, the ISR stays ({reason})"
            yield of_partitions("finds no leader for", rule, [partition], after, **options)
        elif before == leader:
            left = [member for member in isr_before if member not in isr]
            if left:
                start = f"removes {words.brokers(left)} from the ISR of"
                yield of_partitions(
                    start, rule, [partition], f", led by broker {leader}, in a new leader epoch ({reason})", **options
                )
            else:
                start = f"keeps broker {leader} as leader, in a new leader epoch, of"
                yield of_partitions(start, rule, [partition], f" ({reason})", **options)
        else:
            after = f": the ISR is {words.isr(isr)} ({reason})"
            yield of_partitions(f"elects broker {leader} as leader of", rule, [partition], after, **options)


def _zookeeper_write(event: Event, known: Known) -> list[Said]:
    first = event.row.get("first") or [["write", "", None]]
    operation, path = str(first[0][0]), str(first[0][1])
    number, outcome = event.row.get("operations", len(first)), str(event.row.get("outcome"))
    if path.endswith("/state"):
        verb = {"set": "writes", "create": "creates", "delete": "deletes"}.get(operation, operation)
        what, condition = (
            f"{verb} the state of",
            ", each only if nobody else has written it" if operation == "set" else "",
        )
        rest = f" in ZooKeeper{condition}: {outcome}"
    else:
        what, rest = f"{operation}s", f" in ZooKeeper, the first is {path}: {outcome}"
    noun = "partition" if path.endswith("/state") else "node"
    return [
        Said(
            lambda names, count: f"{what} {words.count(count, noun)}{rest}",
            "INV-9",
            ("zookeeper", what, rest if noun == "partition" else ""),
            count=number if isinstance(number, int) else len(first),
            as_controller=True,
        )
    ]


MEANINGS: Mapping[tuple[str, bool], str] = MappingProxyType(
    {
        ("UpdateMetadata", True): "all brokers, topics and leaders, for the answers to clients",
        ("UpdateMetadata", False): "what changed, for the answers to clients",
        ("LeaderAndIsr", True): "what to lead and what to follow, all of it",
        ("LeaderAndIsr", False): "what to lead and what to follow from now on",
        ("StopReplica", False): "replicas to stop",
    }
)


def _control_request_sent(event: Event, known: Known) -> list[Said]:
    row = event.row
    request, broker = str(row.get("request")), row.get("broker")
    meaning = MEANINGS.get((request, bool(row.get("is_full"))), "")
    return [
        Said(
            lambda names, count: f"sends {request} to {words.brokers(sorted(names))}: {meaning}",
            "CTL-13" if request == "UpdateMetadata" else "CTL-15",
            ("sent", request, meaning),
            brokers=(broker,) if isinstance(broker, int) else (),
            as_controller=True,
        )
    ]


def _control_request_refused(event: Event, known: Known) -> list[Said]:
    row = event.row
    error = row.get("error")
    refused = row.get("partitions") or []
    what = str(error) if error != "NONE" else words.partitions([str(one[0]) for one in refused])
    return one(
        f"is told by broker {row.get('broker')} that it refuses {row.get('request')}: {what}",
        "INV-8",
        as_controller=True,
    )


def _control_request_done(event: Event, known: Known) -> list[Said]:
    row = event.row
    if row.get("error") in (None, "NONE"):
        return []
    return one(f"refuses {row.get('request')} of controller {row.get('controller')}: {row.get('error')}", "INV-8")


# -- what the brokers make of it --------------------------------------------------------------------------------------


def _controller_epoch_raised(event: Event, known: Known) -> list[Said]:
    row = event.row
    if isinstance(row.get("controller"), int):
        known.controller = row["controller"]
    text = (
        f"takes orders of controller epoch {row.get('controller_epoch')} (broker {row.get('controller')}) from now on, "
        "and of no older one"
    )
    return one(text, "LAI-1")


RULE_OF_REFUSAL: Mapping[str, str] = MappingProxyType(
    {
        "STALE_CONTROLLER_EPOCH": "LAI-2",
        "FENCED_LEADER_EPOCH": "LAI-6",
        "UNKNOWN_TOPIC_OR_PARTITION": "LAI-3",
        "KAFKA_STORAGE_ERROR": "LOG-6",
        "REPLICA_NOT_AVAILABLE": "FLT-33",
    }
)


def _refusals(event: Event) -> Iterator[Said]:
    for row in event.row.get("refused") or ():
        partition, error, reason = (*map(str, row), "", "")[:3]
        rule = RULE_OF_REFUSAL.get(error, "LAI-2")
        yield of_partitions("refuses the order for", rule, [partition], f": {reason or error}")


def _leader_and_isr(event: Event, known: Known) -> Iterator[Said]:
    """Rows: [partition, leader, leader epoch, ISR, log end offset, high watermark]; the last two are missing without a log."""
    for row in event.row.get("taken") or ():
        partition, leader, epoch, isr = str(row[0]), row[1], row[2], tuple(row[3])
        found, here = known.of(partition), event.broker or NO_LEADER
        found.is_led(leader, isr)
        before, found.leader_at[here] = found.leader_at.get(here), leader
        if leader == event.broker:
            if len(row) > 5:
                found.began = (epoch, row[5])
            if before == leader:
                yield of_partitions("continues to lead", "LAI-4", [partition], ", in the new leader epoch")
            else:
                after = ": starts the leader epoch at its log end offset, and serves producers from now on"
                yield of_partitions("becomes the leader of", "LAI-4", [partition], after)
        elif leader == NO_LEADER:
            yield of_partitions("waits for a leader of", "LAI-4", [partition])
        elif before == leader:
            yield of_partitions(
                f"continues to follow broker {leader} in", "LAI-4", [partition], ", in the new leader epoch"
            )
        else:
            yield of_partitions(f"becomes a follower of broker {leader} in", "LAI-4", [partition])
    yield from _refusals(event)


def _stop_replica(event: Event, known: Known) -> Iterator[Said]:
    for row in event.row.get("partitions") or ():
        known.of(str(row[0])).leader_at.pop(event.broker or NO_LEADER, None)
        verb = "stops and deletes its replica of" if row[2] else "stops its replica of"
        yield of_partitions(verb, "LAI-6", [str(row[0])])
    yield from _refusals(event)


def _isr_change(event: Event, known: Known) -> list[Said]:
    row = event.row
    partition, outcome = str(row.get("partition")), row.get("outcome")
    isr, before = _ints(row.get("isr")), _ints(row.get("isr_before"))
    came, left = [m for m in isr if m not in before], [m for m in before if m not in isr]
    change = f"adds {words.brokers(came)} to" if came else f"removes {words.brokers(left)} from"
    if outcome == "COMMITTED":
        found = known.of(partition)
        found.is_led((event.broker or NO_LEADER) if found.leader is None else found.leader, isr)
        why = "has caught up with its log" if came else "has not caught up for too long"
        after = f", which {why}: the ISR is {words.isr(isr)}"
        return [of_partitions(f"{change} the ISR of", "REP-3", [partition], after)]
    if outcome == "REFUSED":
        after = ": the follower died or was started again since it fetched"
        return [of_partitions(f"{_infinitive(change)} the ISR of", "INV-14", [partition], after)]
    after = ": somebody else has written the state, so it waits for the controller"
    return [of_partitions(f"{_infinitive(change)} the ISR of", "REP-3, INV-10", [partition], after)]


def _infinitive(change: str) -> str:
    verb, _, rest = change.partition(" ")
    return f"cannot {verb.removesuffix('s')} {rest}"


def _isr_changes_announced(event: Event, known: Known) -> list[Said]:
    row = event.row
    first = _texts(row.get("first"))
    more = max(0, row.get("partitions", 0) - len(first)) if isinstance(row.get("partitions"), int) else 0
    return [
        of_partitions(
            "hears of changed ISRs of", "CTL-13", first, ", and tells all brokers", more=more, as_controller=True
        )
    ]


def _truncation(event: Event, known: Known) -> list[Said]:
    row = event.row
    start, end = row.get("from_offset"), row.get("to_offset")
    if row.get("fully"):
        text = f"empties its log of {row.get('partition')} and starts at offset {end}: the leader has nothing earlier"
    else:
        text = f"cuts its log of {row.get('partition')} from offset {start} to {end}: the leader does not have these records"
    return one(text, "REP-6", partitions=[str(row.get("partition"))])


def _high_watermarks(event: Event, known: Known) -> list[Said]:
    """Rows: [partition, leader epoch, high watermark, log end offset]. Only the first move in a leader epoch is told."""
    moved = []
    for row in event.row.get("partitions") or ():
        name, epoch, high_watermark = str(row[0]), row[1], row[2]
        found = known.of(name)
        if found.began is not None and found.began[0] == epoch and high_watermark > found.began[1]:
            found.began = None
            moved.append(name)
    if not moved:
        return []
    after = ": the whole ISR has the new records, so acks=all is answered again"
    return [of_partitions("sees the high watermark move in", "REP-1, REP-4", moved, after)]


def _group_state(event: Event, known: Known) -> list[Said]:
    row = event.row
    group, generation, cause = row.get("group"), row.get("generation"), row.get("cause")
    is_new_kind = cause == f"epoch {generation}"  # KIP-848
    texts = {
        "PreparingRebalance": f"starts a rebalance of group {group}: {cause}",
        "CompletingRebalance": f"waits for the assignment of group {group}, generation {generation}: {cause}",
        "Stable": f"group {group} is stable in {cause if is_new_kind else f'generation {generation}: {cause}'}",
        "Empty": f"group {group} is empty{' in' if is_new_kind else ':'} {cause}",
        "Dead": f"group {group} ends: {cause}",
        "Assigning": f"group {group} is to be assigned anew, for {cause}",
        "Reconciling": f"group {group} has a target for {cause}: its members give up and take partitions",
    }
    after = str(row.get("after"))
    return one(texts.get(after, f"group {group} is {after}: {cause}"), "CLI-2")


def _transaction_decided(event: Event, known: Known) -> list[Said]:
    row = event.row
    end = "commit" if row.get("state") == "PrepareCommit" else "abort"
    markers = words.count(row.get("partitions") or 0, "partition")
    return one(
        f"decides to {end} the transaction of {row.get('transactional_id')}: {row.get('cause')}. Sends markers to {markers}",
        "TXN-1",
    )


def _transactions_loaded(event: Event, known: Known) -> list[Said]:
    row = event.row
    number = words.count(row.get("transactional_ids") or 0, "transactional id")
    text = f"coordinates {number} now: it leads {row.get('partition')} and has read their states"
    if row.get("ending"):
        text += f". Sends the markers of {words.count(row['ending'], 'transaction')} whose end was decided"
    return one(text, "LAI-5, TXN-1", partitions=[str(row.get("partition"))])


# -- the others -------------------------------------------------------------------------------------------------------


class _Fields(dict[str, Any]):
    """The fields of a row; a missing one is `?`, because the line may be damaged."""

    def __missing__(self, key: str) -> str:
        return "?"


def _registered(event: Event, known: Known) -> list[Said]:
    # A life of a broker begins without leaders.
    for found in known.partitions.values():
        found.leader_at.pop(event.broker or NO_LEADER, None)
    return one(
        f"registers in ZooKeeper: this life of it has broker epoch {event.row.get('broker_epoch')}", "STA-1, STA-3"
    )


def _zookeeper_session(event: Event, known: Known) -> list[Said]:
    state = str(event.row.get("state"))
    texts = {
        "connected": ("is connected to ZooKeeper", False),
        "suspended": ("has lost its connection to ZooKeeper; its session may still live", True),
        "expired": ("has lost its ZooKeeper session: others may lead its partitions", True),
        "closed": ("closes its ZooKeeper session", False),
    }
    text, is_trigger = texts.get(state, (f"ZooKeeper session: {state}", False))
    return one(text, "STA-4", is_trigger=is_trigger)


def _of_row(row: Mapping[str, Any]) -> Sentence:
    """The sentence of a row of sentences.yaml."""
    return _done_to(row) if "does" in row else _sentence(row)


def _sentence(told: Mapping[str, Any]) -> Sentence:
    """A line with the event's fields in it. `partition` and `partitions` are also what a filter by topic looks at."""
    counts = told.get("counts", {})

    def say(event: Event, known: Known) -> list[Said]:
        row = event.row
        names = _texts(row.get("partitions")) or ((str(row["partition"]),) if "partition" in row else ())
        shown = {
            **{name: ", ".join(map(str, value)) if isinstance(value, list) else value for name, value in row.items()},
            **{name: words.count(row.get(name) or 0, noun) for name, noun in counts.items()},
            "of_partitions": words.partitions(names, _int(row.get("more"))) if names else "no partition",
        }
        if told.get("ends_topics"):
            known.forget_topics(_texts(row.get("topics")))
        text = told["says"].format_map(_Fields(shown))
        as_controller, is_trigger = told.get("controller", False), told.get("trigger", False)
        return one(text, told["rule"], partitions=names, as_controller=as_controller, is_trigger=is_trigger)

    return say


def _done_to(told: Mapping[str, Any]) -> Sentence:
    """What somebody does to a broker. Of harm, also what the broker led, and the role by which it was named."""
    verb, rule, after = told["does"], told["rule"], told.get("after", "")

    def say(event: Event, known: Known) -> list[Said]:
        broker = event.row.get("broker")
        if not told.get("harms"):
            return one(f"{verb} broker {broker}{after}", rule)
        is_controller = broker is not None and broker == known.controller
        used = "FLT-4" if is_controller and rule == "FLT-1" else rule
        roles = _roles(broker, known)
        text = f"{verb} {_victim(event)}{after}" + (f", which {roles}" if roles else "")
        return one(text, used, partitions=known.led_by(broker), is_trigger=True)

    return say


SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        **{kind: _of_row(row) for kind, row in yaml.load(TABLE.read_text(), LOADER).items()},
        "links_broken": _links_broken,
        "links_joined": _links_joined,
        "registered": _registered,
        "zookeeper_session": _zookeeper_session,
        "controller_known": _controller_known,
        "controller_elected": _controller_elected,
        "controller_step": _controller_step,
        "controller_in_office": _controller_in_office,
        "controller_resigned": _controller_resigned,
        "brokers_changed": _brokers_changed,
        "leader_elected": _leader_elected,
        "zookeeper_write": _zookeeper_write,
        "control_request_sent": _control_request_sent,
        "control_request_answered": _nothing,
        "control_request_refused": _control_request_refused,
        "isr_changes_announced": _isr_changes_announced,
        "control_request_received": _nothing,
        "control_request_done": _control_request_done,
        "controller_epoch_raised": _controller_epoch_raised,
        "leader_and_isr": _leader_and_isr,
        "stop_replica": _stop_replica,
        "isr_change": _isr_change,
        "high_watermarks": _high_watermarks,
        "truncation": _truncation,
        "group_state": _group_state,
        "transaction_decided": _transaction_decided,
        "transactions_loaded": _transactions_loaded,
    }
)


def sentences(event: Event, known: Known) -> list[Said]:
    """What to say of the event. A kind of another release, and a damaged line, are said as they are."""
    say = SENTENCES.get(event.kind)
    try:
        if say is not None:
            return list(say(event, known))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        pass
    fields = ", ".join(f"{name}={value}" for name, value in event.row.items() if name not in ("time_ms", "kind"))
    return one(f"{event.kind}: {fields}" if fields else event.kind, "")
