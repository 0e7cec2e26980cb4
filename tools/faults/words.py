"""The words of faults, the same on the command line, in one line of text, and in a scenario file (FAU-1, FAU-2). Pure.

    ACTION ROLE [from WHOM[,WHOM]] [one-way in|out] [delay TIME] [throttle RATE] [reset] [half] [for TIME] [at TIME]

Faults in single requests have words of their own (`request_words.py`). docs/FAULTS.md explains all. The command line writes the words
behind the role with two dashes; the other two accept both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tools.cluster.links.rules import CLEAR, DELAY_MAX_S, RATE_MAX, RATE_MIN, ZOOKEEPER, Effect, Rule
from tools.failures import ExpectedError
from tools.faults.request_words import VERBS as REQUEST_VERBS
from tools.faults.request_words import BadWords, RequestFault, is_request_fault, line_of, parse_request_fault
from tools.points_in_time import NoTime, parse_duration_ms

VERBS = (
    "kill",
    "stop",
    "pause",
    "bounce",
    "restart",
    "resume",
    "isolate",
    "cut",
    "expire-session",
    "fill-disk",
    "heal",
)
OF_LINKS = ("isolate", "cut")
UNDOING = ("resume", "heal")
LASTING = ("kill", "stop", "pause", "isolate", "cut", "fill-disk")
"""The actions with an undo, which therefore can have `for`."""
ROLES = (
    "leader of TOPIC-PARTITION, follower of TOPIC-PARTITION, controller, coordinator of GROUP, "
    "transaction-coordinator of ID, broker ID, zookeeper, and in a script: it, whom the fault before it hit"
)
PEERS, CONTROLLER = "peers", "controller"
WHOM = "peers, zookeeper, controller, broker:ID"
EVERYBODY = (PEERS, ZOOKEEPER)
OPTIONS = ("from", "one-way", "delay", "throttle", "reset", "half", "for", "at")
"""The words that may stand behind a role, in the order in which they are written. `reset` and `half` have no value."""
DIRECTIONS = ("in", "out")
SILENT = Effect(is_cut=True)
_RATES = {"bit": 1, "Kbit": 1_000, "Mbit": 1_000_000, "Gbit": 1_000_000_000}

_ROLE = re.compile(
    r"(?P<side>leader|follower) (?:of )?(?P<topic>\S+)-(?P<partition>\d{1,9})"
    r"|(?P<kind>(?:transaction-)?coordinator) (?:of )?(?P<name>.+)"
    r"|broker (?P<broker>\d{1,9})|controller|zookeeper|it"
)
_TAIL = re.compile(
    r" (?:--)?(?:(?P<key>from|one-way|delay|throttle|for|at) (?P<value>\S+)|(?P<flag>reset|half))(?P<rest>(?: .*)?)"
)
_OTHER_BROKER = re.compile(r"broker:(\d{1,9})")
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([A-Za-z]+)")


class FaultError(ExpectedError, ValueError):
    """A fault that cannot be read, or that this cluster cannot have; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class Breakage:
    """Which links of the victim are broken, and how.

    `away_from`: some of WHOM. `direction`: `in` is what the victim would hear, `out` what it says, else `both`.
    """

    away_from: tuple[str, ...] = EVERYBODY
    direction: str = "both"
    effect: Effect = SILENT

    def __str__(self) -> str:
        words = [f"from {','.join(self.away_from)}"]
        words += [f"one-way {self.direction}"] if self.direction != "both" else []
        return " ".join([*words, *self.effects])

    @property
    def effects(self) -> list[str]:
        """Such as `delay 100ms` and `half`; none: bytes wait."""
        effect = self.effect
        words = [f"delay {1000 * effect.delay_s:g}ms"] if effect.delay_s else []
        words += [f"throttle {effect.bits_per_s:.0f}bit"] if effect.bits_per_s is not None else []
        words += ["reset"] if effect.resets else []
        words += ["half"] if effect.halves else []
        return words

    def rules(self, victim: int | None, brokers: tuple[int, ...]) -> list[Rule]:
        """The rules for the links of this broker (None: ZooKeeper) in a cluster of these brokers. Raises FaultError."""
        of = ZOOKEEPER if victim is None else str(victim)
        rules = []
        for whom in self.away_from:
            other = _OTHER_BROKER.fullmatch(whom)
            if victim is None and whom in (ZOOKEEPER, CONTROLLER):
                if self.away_from == EVERYBODY:
                    continue
                raise FaultError(f"ZooKeeper has no link to {whom}: it can be cut from peers, or from broker:ID")
            others = {str(broker) for broker in brokers if broker != victim}
            if other is not None:
                if int(other[1]) not in brokers:
                    raise FaultError(
                        f"the cluster has no broker {other[1]}; its brokers are {', '.join(map(str, brokers))}"
                    )
                others = {str(int(other[1]))}
            elif whom == ZOOKEEPER:
                others = {ZOOKEEPER}
            if others == {of}:
                raise FaultError(f"broker {of} has no link to itself")
            if not others:
                raise FaultError(f"broker {of} has no peers")
            rule_id = f"{of} {self} {whom}"
            rules.append(Rule(rule_id, of, frozenset(others), self.effect, self.direction, whom == CONTROLLER))
        return rules


@dataclass(frozen=True, slots=True)
class Words:
    """A fault as it was said. `role`: in its long form, such as `leader of t-0`; empty for `heal` of everything.

    `lasts_s`: None if it lasts until it is healed. `at_s`: seconds since the start of its run; None without `at`.
    """

    verb: str
    role: str
    breakage: Breakage | None = None
    lasts_s: float | None = None
    at_s: float | None = None
    request: RequestFault | None = None
    """Of a fault in single requests. `role` is then what stands behind the verb."""

    def __str__(self) -> str:
        if self.request is not None:
            return line_of(replace(self.request, at_s=self.at_s))
        parts = [self.verb, self.role, str(self.breakage or "")]
        parts += [f"for {self.lasts_s:g}s"] if self.lasts_s is not None else []
        parts += [f"at {self.at_s:g}s"] if self.at_s is not None else []
        return " ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class Role:
    """A role in parts; the others are empty or None. `kind`: leader, follower, controller, coordinator, ..."""

    kind: str
    topic: str = ""
    partition: int = 0
    name: str = ""
    broker: int | None = None


def parse_words(text: str) -> Words:
    """One line, such as `cut leader of t-0 from peers one-way in for 10s at 20s`. Raises FaultError."""
    line = " ".join(text.split())
    verb, _, rest = line.partition(" ")
    if is_request_fault(line):
        return request_words_of(line)
    role, options = _split_options(f" {rest}" if rest else "", text)
    return words_of(verb, role, options, text)


def words_of(verb: str, role: str, options: Mapping[str, str], where: str) -> Words:
    """From a verb, a role and the words behind it, as option -> value. `where` is quoted in errors. Raises FaultError."""
    if verb not in VERBS:
        known = ", ".join((*VERBS, *REQUEST_VERBS))
        raise FaultError(f"{where!r}: {verb!r} is no action; the actions are {known}")
    if not role and verb != "heal":
        raise FaultError(f"{where!r} names no role; the roles are {ROLES}")
    if role:
        role = normal_role(role, where)
    lasts_s = seconds_of(options["for"], where) if "for" in options else None
    if lasts_s is not None and verb not in LASTING:
        raise FaultError(f"{where!r}: {verb} has no end, so it cannot have `for`; {', '.join(LASTING)} have one")
    at_s = seconds_of(options["at"], where) if "at" in options else None
    return Words(verb, role, _breakage(verb, options, where), lasts_s, at_s)


def request_words_of(line: str) -> Words:
    """A line about requests, such as `drop join-group once`. Raises FaultError."""
    try:
        found = parse_request_fault(line)
    except BadWords as problem:
        raise FaultError(str(problem)) from None
    if found.role:
        found = replace(found, role=normal_role(found.role, line))
    verb, _, rest = line_of(replace(found, at_s=None)).partition(" ")
    return Words(verb, rest, None, found.rule.lasts_s or None, found.at_s, replace(found, at_s=None))


def normal_role(text: str, where: str) -> str:
    """`leader of t-0` for `leader t-0`. Raises FaultError."""
    match = _ROLE.fullmatch(text)
    if match is None:
        raise FaultError(f"{where!r}: {text!r} is no role; the roles are {ROLES}")
    if match["side"]:
        return f"{match['side']} of {match['topic']}-{match['partition']}"
    return f"{match['kind']} of {match['name']}" if match["kind"] else text


def role_of(text: str) -> Role:
    """The parts of a role in its long form."""
    match = _ROLE.fullmatch(text)
    if match is None:
        raise FaultError(f"{text!r} is no role; the roles are {ROLES}")
    if match["side"]:
        return Role(match["side"], topic=match["topic"], partition=int(match["partition"]))
    if match["kind"]:
        return Role(match["kind"], name=match["name"])
    return Role("broker", broker=int(match["broker"])) if match["broker"] else Role(text)


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


def _split_options(rest: str, where: str) -> tuple[str, dict[str, str]]:
    """The role, and the options behind it. The options start at the first word from which on everything is an option."""
    for start in (match.start() for match in re.finditer(" ", rest)):
        options: dict[str, str] = {}
        tail = rest[start:]
        while tail and (match := _TAIL.fullmatch(tail)):
            key = match["key"] or match["flag"]
            if key in options:
                raise FaultError(f"{where!r} has {key} twice")
            options[key] = match["value"] or ""
            tail = match["rest"]
        if not tail:
            return rest[:start].strip(), options
    return rest.strip(), {}


def _breakage(verb: str, options: Mapping[str, str], where: str) -> Breakage | None:
    given = [key for key in OPTIONS[:-2] if key in options]
    if verb not in OF_LINKS:
        if given:
            raise FaultError(f"{where!r}: {given[0]} is for {' and '.join(OF_LINKS)}, not for {verb}")
        return None
    if verb == "cut" and "from" not in options:
        raise FaultError(f"{where!r}: cut from whom? Say `from` and some of {WHOM}")
    away_from = tuple(options["from"].split(",")) if "from" in options else EVERYBODY
    for whom in away_from:
        if whom not in (PEERS, ZOOKEEPER, CONTROLLER) and _OTHER_BROKER.fullmatch(whom) is None:
            raise FaultError(f"{where!r}: {whom!r} is not one of {WHOM}")
    direction = options.get("one-way", "both")
    if direction not in (*DIRECTIONS, "both"):
        raise FaultError(f"{where!r}: one-way {direction!r}: expected in (it hears nothing) or out (nobody hears it)")
    delay_s = seconds_of(options["delay"], where) if "delay" in options else 0.0
    if delay_s > DELAY_MAX_S:
        raise FaultError(f"{where!r}: a delay is at most {DELAY_MAX_S:g} s")
    rate = _rate(options["throttle"], where) if "throttle" in options else None
    effect = Effect(delay_s=delay_s, bits_per_s=rate, resets="reset" in options, halves="half" in options)
    return Breakage(away_from, direction, effect if effect != CLEAR else SILENT)


def _rate(text: str, where: str) -> float:
    match = _RATE.fullmatch(text)
    rate = float(match[1]) * _RATES.get(match[2], 0) if match else 0
    if not RATE_MIN <= rate <= RATE_MAX:
        raise FaultError(
            f"{where!r}: {text!r} is no rate from 1Kbit to 100Gbit; write for example 500Kbit or 3Mbit (per second)"
        )
    return rate
