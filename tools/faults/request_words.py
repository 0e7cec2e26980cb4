"""The words of faults in single requests: `answer produce of orders-0 with NOT_LEADER_OR_FOLLOWER 3 times` (docs/FAULTS.md). Pure.

    answer API with ERROR                       lose the answer to API [and cut]        throttle API by TIME
    answer metadata with the leaders of 5s ago  drop API [and cut]                      refuse connections
    delay API by TIME [+-TIME]                  garble the answer to fetch              close idle connections now
    cut the connection in the middle of the answer to API

Behind these stand filters (`of ...`, `client X`, `versions 9-11`), limits (`once`, `3 times`, `every 2nd`, `for 5s`) and a place
(`at broker 2`), in any order. API is one of Kafka's names, such as `end-txn`, its key, or `everything`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from protocol.conversation import api_errors
from protocol.conversation.rule import (
    ANSWER,
    CLOSE_IDLE,
    DELAY,
    DROP,
    GARBLE,
    HALVE,
    LEADERS_BEFORE,
    LOSE,
    REFUSE,
    THROTTLE,
    BadRule,
    Rule,
    checked,
)
from protocol.kafka.api_keys import ApiKey
from tools.points_in_time import NoTime, parse_duration_ms

VERBS = ("answer", "lose", "drop", "delay", "throttle", "garble", "refuse", "close")
"""The actions on requests, beside `cut the connection in the middle of the answer to ...`."""
CUT_ANSWER = "cut the connection in the middle of"
EVERYTHING = "everything"
FILTERS: Mapping[str, str] = {
    "topic": "topic",
    "group": "group",
    "transactional-id": "transactional_id",
    "client": "client",
    "principal": "principal",
    "listener": "listener",
}
"""A word before a name -> the field of the rule."""
_OPTIONS = (
    "of TOPIC-PARTITION, of topic T, of group G, of transactional-id T, of client C, of principal P, of listener L, of brokers, "
    "versions N-M, once, N times, the Nth, every Nth, with probability N%, seed N, for TIME, until healed, at TIME, at ROLE, and cut"
)
_PLACE = re.compile(r"(.+)-(\d{1,9})")
_VERSIONS = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?")
_ORDINAL = re.compile(r"(\d{1,7})(?:st|nd|rd|th)")
_ROLE_WORDS: Mapping[str, int] = {
    "broker": 2,
    "controller": 1,
    "leader": 3,
    "follower": 3,
    "coordinator": 3,
    "transaction-coordinator": 3,
}
"""How many words a role has that begins so."""


class BadWords(ValueError):
    """The text says what was expected."""


@dataclass(frozen=True, slots=True)
class RequestFault:
    """`role`: whose requests, empty: those of all brokers. `at_s`: None: now."""

    rule: Rule
    role: str = ""
    at_s: float | None = None


def is_request_fault(line: str) -> bool:
    """Whether the line is about requests, and not about processes and links."""
    return line.startswith(CUT_ANSWER) or line.partition(" ")[0] in VERBS


def parse_request_fault(text: str) -> RequestFault:
    """Raises BadWords."""
    line = " ".join(text.replace("(", " ").replace(")", " ").split())
    reading = _Reading(text, [word.removeprefix("--") for word in line.split()])
    verb = reading.take("an action")
    values = _HEADS[verb](reading)
    _read_options(reading, values)
    rule_fields = {key: value for key, value in values.items() if key not in ("role", "at_s")}
    try:
        rule = checked(Rule(id="new", everywhere="role" not in values, **rule_fields))
    except BadRule as problem:
        raise BadWords(f"{text!r}: {problem}") from None
    found = RequestFault(rule, values.get("role", ""), values.get("at_s"))
    return replace(found, rule=replace(rule, id=line_of(replace(found, at_s=None))))


@dataclass
class _Reading:
    text: str
    words: list[str]
    taken: list[str] = field(default_factory=list)

    def take(self, expected: str) -> str:
        if not self.words:
            raise BadWords(f"{self.text!r} ends where {expected} was expected")
        word = self.words.pop(0)
        self.taken.append(word)
        return word

    def must(self, *words: str) -> None:
        for word in words:
            if (found := self.take(f"`{word}`")) != word:
                raise BadWords(f"{self.text!r}: expected `{word}`, found `{found}`")

    def may(self, *words: str) -> bool:
        if self.words[: len(words)] != list(words):
            return False
        del self.words[: len(words)]
        return True

    def api(self) -> tuple[int, ...]:
        word = self.take("an API")
        if word == EVERYTHING:
            return ()
        found = api_errors.api_named(word)
        if found is None:
            near = api_errors.nearest(word, api_errors.words())
            raise BadWords(
                f"{self.text!r}: {word!r} is no API{near}; the APIs are {', '.join(api_errors.words())}, {EVERYTHING}"
            )
        return (int(found),)

    def seconds(self) -> float:
        word = self.take("a time, such as 200ms")
        try:
            return parse_duration_ms(word) / 1000
        except NoTime as problem:
            raise BadWords(f"{self.text!r}: {problem}") from None

    def number(self, word: str, expected: str) -> int:
        if not (word.isascii() and word.isdecimal() and len(word) < 10):
            raise BadWords(f"{self.text!r}: expected {expected}, found `{word}`")
        return int(word)


def _answer(reading: _Reading) -> dict[str, Any]:
    apis = reading.api()
    values: dict[str, Any] = {"effect": ANSWER, "apis": apis}
    # `answer fetch of orders-0 with ERROR`: filters may stand before the error.
    while reading.words and reading.words[0] != "with":
        _read_option(reading, values)
    reading.must("with")
    if reading.may("the", "leaders", "of") or reading.may("leaders", "of"):
        values.update(effect=LEADERS_BEFORE, seconds=reading.seconds())
        reading.must("ago")
    else:
        values["error"] = reading.take("an error").upper()
    return values


def _lose(reading: _Reading) -> dict[str, Any]:
    return {"effect": LOSE, "apis": _answer_to(reading)}


def _halve(reading: _Reading) -> dict[str, Any]:
    reading.must(*CUT_ANSWER.split()[1:])
    return {"effect": HALVE, "apis": _answer_to(reading)}


def _garble(reading: _Reading) -> dict[str, Any]:
    return {"effect": GARBLE, "apis": _answer_to(reading)}


def _answer_to(reading: _Reading) -> tuple[int, ...]:
    reading.may("the")
    if not reading.may("answers"):
        reading.must("answer")
    reading.must("to")
    return reading.api()


def _throttle(reading: _Reading) -> dict[str, Any]:
    """`throttle client X by 300ms` is `throttle everything of client X by 300ms`."""
    return {"effect": THROTTLE, "apis": () if reading.words[:1] and reading.words[0] in FILTERS else reading.api()}


def _refuse(reading: _Reading) -> dict[str, Any]:
    reading.must("connections")
    return {"effect": REFUSE}


def _close(reading: _Reading) -> dict[str, Any]:
    reading.must("idle", "connections")
    reading.may("now")
    return {"effect": CLOSE_IDLE}


_HEADS: Mapping[str, Callable[[_Reading], dict[str, Any]]] = {
    "answer": _answer,
    "lose": _lose,
    "drop": lambda reading: {"effect": DROP, "apis": reading.api()},
    "delay": lambda reading: {"effect": DELAY, "apis": reading.api()},
    "throttle": _throttle,
    "garble": _garble,
    "refuse": _refuse,
    "close": _close,
    "cut": _halve,
}


def _read_options(reading: _Reading, values: dict[str, Any]) -> None:
    while reading.words:
        _read_option(reading, values)


def _read_option(reading: _Reading, values: dict[str, Any]) -> None:
    word = reading.take("an option")
    found: dict[str, Any]
    if word == "of":
        found = _of(reading)
    elif word in FILTERS:
        found = {FILTERS[word]: reading.take(f"a {word}")}
    elif word in ("version", "versions"):
        found = _versions(reading)
    elif word == "by":
        found = {"seconds": reading.seconds()}
        if reading.words and reading.words[0].startswith("+-"):
            reading.words[0] = reading.words[0].removeprefix("+-")
            found["spread_s"] = reading.seconds()
    elif word == "once":
        found = {"times": 1}
    elif word in ("the", "every"):
        found = {"nth" if word == "the" else "every": _ordinal(reading)}
        if word == "the":
            reading.may("time")
    elif word == "with":
        reading.must("probability")
        share = reading.take("a share, such as 10%")
        found = {"probability": reading.number(share.removesuffix("%"), "a share, such as 10%") / 100}
    elif word == "seed":
        found = {"seed": reading.number(reading.take("a number"), "a number")}
    elif word == "for":
        found = {"lasts_s": reading.seconds()}
        if not found["lasts_s"]:
            raise BadWords(f"{reading.text!r}: a rule lasts for some time: `for 0s` is none")
    elif word == "until":
        reading.must("healed")
        return
    elif word == "at":
        found = _at(reading)
    elif word == "and":
        reading.must("cut")
        found = {"cuts": True}
    elif reading.may("times"):
        found = {"times": reading.number(word, "how often")}
        if not found["times"]:
            raise BadWords(f"{reading.text!r}: `{word} times` hits nothing")
    else:
        near = api_errors.nearest(word, (*FILTERS, "once", "times", "every", "for", "until", "versions", "probability"))
        raise BadWords(f"{reading.text!r}: `{word}` is not one of the words here{near}: {_OPTIONS}")
    for key in found:
        if key in values and key != "effect":
            raise BadWords(f"{reading.text!r} says {'how many times' if key == 'times' else word} twice")
    values.update(found)


def _of(reading: _Reading) -> dict[str, Any]:
    word = reading.take("whose")
    if word in FILTERS:
        return {FILTERS[word]: reading.take(f"a {word}")}
    if word == "brokers":
        return {"of_brokers": True}
    place = _PLACE.fullmatch(word)
    if place is None:
        raise BadWords(
            f"{reading.text!r}: `of {word}` is neither a partition, such as orders-0, nor {', '.join(FILTERS)} NAME, nor brokers"
        )
    return {"topic": place[1], "partition": int(place[2])}


def _versions(reading: _Reading) -> dict[str, Any]:
    word = reading.take("versions, such as 9 or 9-11")
    match = _VERSIONS.fullmatch(word)
    if match is None:
        raise BadWords(f"{reading.text!r}: expected versions, such as 9 or 9-11, found `{word}`")
    return {"versions": (int(match[1]), int(match[2] or match[1]))}


def _ordinal(reading: _Reading) -> int:
    word = reading.take("a number, such as 3rd")
    match = _ORDINAL.fullmatch(word)
    if match is None or not int(match[1]):
        raise BadWords(f"{reading.text!r}: expected a number such as 3rd, found `{word}`")
    return int(match[1])


def _at(reading: _Reading) -> dict[str, Any]:
    if reading.words and reading.words[0][0].isdigit():
        return {"at_s": reading.seconds()}
    word = reading.take("a time or a role")
    if word not in _ROLE_WORDS:
        raise BadWords(
            f"{reading.text!r}: `at {word}` is neither a time, such as at 20s, nor a role: {', '.join(_ROLE_WORDS)}"
        )
    words = [word]
    while len(words) < _ROLE_WORDS[word]:
        words.append(reading.take(f"the rest of the role that begins with `{word}`"))
    return {"role": " ".join(words)}


def line_of(fault: RequestFault) -> str:
    """The line that `parse_request_fault` reads as this fault."""
    rule = fault.rule
    api = api_errors.word_of(ApiKey(rule.apis[0])) if rule.apis else EVERYTHING
    time_ = _time(rule.seconds)
    heads = {
        ANSWER: f"answer {api} with {rule.error}",
        LEADERS_BEFORE: f"answer {api} with the leaders of {time_} ago",
        LOSE: f"lose the answer to {api}",
        DROP: f"drop {api}",
        DELAY: f"delay {api} by {time_}" + (f" +-{_time(rule.spread_s)}" if rule.spread_s else ""),
        HALVE: f"{CUT_ANSWER} the answer to {api}",
        GARBLE: f"garble the answer to {api}",
        THROTTLE: f"throttle {api} by {time_}",
        REFUSE: "refuse connections",
        CLOSE_IDLE: "close idle connections now",
    }
    parts = [heads[rule.effect]]
    if rule.partition >= 0:
        parts.append(f"of {rule.topic}-{rule.partition}")
    parts += [
        f"of {word} {getattr(rule, name)}"
        for word, name in FILTERS.items()
        if getattr(rule, name) and not (name == "topic" and rule.partition >= 0)
    ]
    parts += ["of brokers"] if rule.of_brokers else []
    parts += [f"versions {rule.versions[0]}-{rule.versions[1]}"] if rule.versions else []
    parts += ["once" if rule.times == 1 else f"{rule.times} times"] if rule.times else []
    parts += [f"the {_ordinal_of(rule.nth)}"] if rule.nth else []
    parts += [f"every {_ordinal_of(rule.every)}"] if rule.every else []
    parts += [f"with probability {100 * rule.probability:.0f}%"] if rule.probability < 1 else []
    parts += [f"seed {rule.seed}"] if rule.seed else []
    parts += ["and cut"] if rule.cuts else []
    parts += [f"for {_time(rule.lasts_s)}"] if rule.lasts_s else []
    parts += [f"at {fault.role}"] if fault.role else []
    parts += [f"at {_time(fault.at_s)}"] if fault.at_s is not None else []
    return " ".join(parts)


def _time(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1 else f"{1000 * seconds:g}ms"


def _ordinal_of(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
