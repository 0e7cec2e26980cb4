"""One rule about requests: what happens to those that it hits, which it hits, and how often (docs/FAULTS.md). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from protocol.conversation import api_errors
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey

FAULT_SOCKET = "faults"
"""The name of a broker's socket for rules, beside its settings."""

LOOKS_FOR_ROLES, LOOKS_WHO_SERVES = "ottla-faults", "ottla-cluster"
"""The client ids with which faults look for their victims, and commands wait until brokers serve. Rules spare them, unless they name a
client."""

ANSWER = "answer"
"""An error in place of the work."""
LEADERS_BEFORE = "leaders-before"
"""Metadata with the leaders of some seconds ago."""
LOSE = "lose"
"""The work is done, and its answer does not arrive."""
DROP = "drop"
"""The request does not arrive."""
DELAY = "delay"
"""The answer comes later."""
HALVE = "halve"
"""Half of the answer arrives, then the connection ends."""
GARBLE = "garble"
"""One bit of the records in an answer is another one: their checksum shows it."""
THROTTLE = "throttle"
"""The answer says that the client is over its quota, and the connection is muted as in KIP-219."""
REFUSE = "refuse"
"""The connection ends at its first request."""
CLOSE_IDLE = "close-idle"
"""Connections whose client waits for nothing end now. This is done once, and is no rule afterwards."""
EFFECTS = (ANSWER, LEADERS_BEFORE, LOSE, DROP, DELAY, HALVE, GARBLE, THROTTLE, REFUSE, CLOSE_IDLE)
TIMED = (LEADERS_BEFORE, DELAY, THROTTLE)
"""The effects that have `seconds`."""
SECONDS_MAX = 60.0
LASTS_MAX_S = 24 * 3600.0
TIMES_MAX = 1_000_000
ID_MAX = 300


class BadRule(ValueError):
    """Not a rule; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The texts of `topic`, `group`, `transactional_id`, `client` and `principal` may have `*` and `?`; empty: any.

    `apis`: keys; empty: every API. `error`: of ANSWER. `seconds`: of TIMED, with `spread_s` more or less for DELAY. `cuts`: LOSE and DROP
    end the connection; otherwise it stays, and says nothing more. `partition`: -1: any. `versions`: (first, last), or empty.
    `of_brokers`: only requests that other brokers send; otherwise only those of clients.

    `times`: so many requests, 0: all. `nth`: only that one, counted from 1; `every`: each n-th; 0: not limited so. `probability`: of each
    request, by `seed`. `lasts_s`: 0: until it is removed. `claims`: a directory that the brokers of one machine share, so that they hit
    `times` requests together; empty: each broker counts for itself. `everywhere`: all brokers have it, also those that join later, where
    somebody gives it to them.
    """

    id: str
    effect: str
    apis: tuple[int, ...] = ()
    error: str = ""
    seconds: float = 0.0
    spread_s: float = 0.0
    cuts: bool = False
    topic: str = ""
    partition: int = -1
    group: str = ""
    transactional_id: str = ""
    client: str = ""
    principal: str = ""
    listener: str = ""
    versions: tuple[int, ...] = ()
    of_brokers: bool = False
    times: int = 0
    nth: int = 0
    every: int = 0
    probability: float = 1.0
    seed: int = 0
    lasts_s: float = 0.0
    claims: str = ""
    everywhere: bool = False

    @property
    def names_content(self) -> bool:
        """Whether a request must be decoded to know if the rule is about it."""
        return bool(self.topic or self.group or self.transactional_id)

    @property
    def error_code(self) -> int:
        """Of ANSWER."""
        return int(ErrorCode[self.error])

    def is_about(self, api_key: int, version: int) -> bool:
        if self.apis and api_key not in self.apis:
            return False
        return not self.versions or self.versions[0] <= version <= self.versions[1]

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _KINDS}

    @staticmethod
    def from_json(row: object) -> Rule:
        """Raises BadRule."""
        if not isinstance(row, Mapping):
            raise BadRule(f"expected a rule, found {type(row).__name__}")
        if unknown := set(map(str, row)) - set(_KINDS):
            raise BadRule(f"a rule has no {', '.join(map(repr, sorted(unknown)))}")
        values = {name: _value(name, _KINDS[name], value) for name, value in row.items()}
        if not values.get("id") or "effect" not in values:
            raise BadRule("a rule needs an id and an effect")
        return checked(Rule(**values))


_KINDS: Mapping[str, str] = MappingProxyType({field.name: str(field.type) for field in fields(Rule)})
"""The fields of a rule, and their types."""
_APIS = frozenset(ApiKey)


def _value(name: str, kind: str, value: object) -> Any:
    match kind, value:
        case ("str", str()) | ("bool", bool()):
            return value
        case "int", int() if not isinstance(value, bool):
            return value
        case "float", int() | float() if not isinstance(value, bool):
            return float(value)
        case _, list() | tuple() if kind.startswith("tuple") and all(type(each) is int for each in value):
            return tuple(value)
    raise BadRule(f"{name}: expected {'whole numbers' if kind.startswith('tuple') else kind}, found {value!r}")


def checked(rule: Rule) -> Rule:
    """The rule, if it can be followed. Raises BadRule."""
    if rule.effect not in EFFECTS:
        raise BadRule(f"{rule.effect!r} is no effect; the effects are {', '.join(EFFECTS)}")
    if len(rule.id) > ID_MAX:
        raise BadRule(f"an id has at most {ID_MAX} characters")
    for key in rule.apis:
        if key not in _APIS:
            raise BadRule(f"there is no API with key {key}; docs/PROTOCOL.md lists those that are served")
    if rule.effect == ANSWER:
        _check_error(rule)
    elif rule.error:
        raise BadRule(f"an error is for {ANSWER}, not for {rule.effect}")
    if (rule.effect in TIMED) != bool(rule.seconds):
        raise BadRule(f"{rule.effect} {'needs' if rule.effect in TIMED else 'has no'} time")
    _check_apis(rule)
    if rule.effect == CLOSE_IDLE and rule != Rule(rule.id, CLOSE_IDLE, everywhere=rule.everywhere):
        raise BadRule("idle connections are closed once, all of them: that has no filter and no limit")
    if rule.cuts and rule.effect not in (LOSE, DROP):
        raise BadRule(f"{rule.effect} does not cut connections; {LOSE} and {DROP} can")
    if rule.spread_s and (rule.effect != DELAY or not 0 <= rule.spread_s <= rule.seconds):
        raise BadRule("a spread is for a delay, and at most as long as it")
    limits = (
        ("seconds", rule.seconds, 0, SECONDS_MAX),
        ("lasts_s", rule.lasts_s, 0, LASTS_MAX_S),
        ("times", rule.times, 0, TIMES_MAX),
        ("nth", rule.nth, 0, TIMES_MAX),
        ("every", rule.every, 0, TIMES_MAX),
        ("partition", rule.partition, -1, 2**31 - 1),
    )
    for name, value, low, high in limits:
        if not low <= value <= high:
            raise BadRule(f"{name} must be from {low} to {high:g}, not {value:g}")
    if not 0 < rule.probability <= 1:
        raise BadRule(f"a probability is above 0 and at most 1, not {rule.probability:g}")
    if rule.partition >= 0 and not rule.topic:
        raise BadRule("a partition needs its topic")
    if rule.versions and (len(rule.versions) != 2 or not 0 <= rule.versions[0] <= rule.versions[1]):
        raise BadRule(f"versions are a first and a last one, not {rule.versions}")
    if rule.times and rule.nth > 0:
        raise BadRule("the n-th request is one request: it cannot be limited to a number of times")
    return rule


def _check_error(rule: Rule) -> None:
    if len(rule.apis) != 1:
        raise BadRule(f"{ANSWER} needs one API")
    api, version = ApiKey(rule.apis[0]), rule.versions[1] if rule.versions else None
    possible = api_errors.errors_of(api, version)
    name = api_errors.word_of(api)
    if not possible:
        raise BadRule(f"{name} cannot be answered with an error; {api_errors.answerable()} can")
    if rule.error not in possible:
        of = f"{name} up to v{version}" if version is not None else name
        raise BadRule(
            f"{of} cannot give {rule.error}{api_errors.nearest(rule.error, possible)}; it can give {', '.join(possible)}"
        )


def _check_apis(rule: Rule) -> None:
    """An effect on the content of answers needs the API that has it."""
    only = {LEADERS_BEFORE: ApiKey.METADATA, GARBLE: ApiKey.FETCH}.get(rule.effect)
    if only is not None and rule.apis != (only,):
        raise BadRule(f"{rule.effect} is for {api_errors.word_of(only)}")
    for api in map(ApiKey, rule.apis):
        if api in api_errors.BEFORE_LOGIN:
            raise BadRule(f"{api_errors.word_of(api)} belongs to the login, which no rule reaches")
        for filter_, named in (
            ("topic", rule.topic),
            ("group", rule.group),
            ("transactional id", rule.transactional_id),
        ):
            if named and api not in api_errors.NAMING[filter_]:
                raise BadRule(
                    f"{api_errors.word_of(api)} names no {filter_}, so the rule could hit nothing; "
                    f"{', '.join(map(api_errors.word_of, sorted(api_errors.NAMING[filter_])))} do"
                )
