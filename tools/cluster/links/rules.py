"""The rules that break links: which link, and how. Pure.

A *link* leads one way, from a source to a target: brokers, by their ids, and `zookeeper`. What a broker answers travels on the opposite
link, as with a firewall that looks at packets and not at connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

ZOOKEEPER = "zookeeper"
DATA, CONTROL, SESSIONS = "data", "control", "sessions"
"""Planes: fetches between brokers, control requests, and ZooKeeper's sessions."""
DIRECTIONS = ("both", "in", "out")
DELAY_MAX_S = 60.0
RATE_MIN, RATE_MAX = 1_000, 100_000_000_000


class BadRule(ValueError):
    """Not a rule; the message says what was expected."""


class Link(NamedTuple):
    """One way between two nodes, for one plane."""

    source: str
    target: str
    plane: str

    @property
    def back(self) -> Link:
        return Link(self.target, self.source, self.plane)


@dataclass(frozen=True, slots=True)
class Effect:
    """What happens to bytes on a link. Without any of these, they pass.

    `is_cut`: they wait until the link is healed; nobody is told. `delay_s`: they arrive later. `bits_per_s`: all connections share
    this rate. `resets`: connections are reset, new ones too. `halves`: half of the next bytes arrive, then the connection is reset.
    """

    is_cut: bool = False
    delay_s: float = 0.0
    bits_per_s: float | None = None
    resets: bool = False
    halves: bool = False

    def __or__(self, other: Effect) -> Effect:
        """Both at once: the longer delay, the lower rate."""
        rates = [rate for rate in (self.bits_per_s, other.bits_per_s) if rate is not None]
        return Effect(
            self.is_cut or other.is_cut,
            max(self.delay_s, other.delay_s),
            min(rates, default=None),
            self.resets or other.resets,
            self.halves or other.halves,
        )

    def __str__(self) -> str:
        parts = [
            "cut" if self.is_cut else "",
            f"{1000 * self.delay_s:g} ms late" if self.delay_s else "",
            f"{self.bits_per_s:g} bit/s" if self.bits_per_s is not None else "",
            "reset" if self.resets else "",
            "halved" if self.halves else "",
        ]
        return ", ".join(filter(None, parts)) or "clear"


CLEAR = Effect()


@dataclass(frozen=True, slots=True)
class Rule:
    """An effect on the links between the node `of` and each of `others`.

    `direction`, as seen by `of`: `in` are the links on which it hears the others. `only_control`: control requests only.
    """

    id: str
    of: str
    others: frozenset[str]
    effect: Effect
    direction: str = "both"
    only_control: bool = False

    def touches(self, link: Link) -> bool:
        if self.only_control and link.plane != CONTROL:
            return False
        if link.source == self.of and link.target in self.others:
            return self.direction != "in"
        return link.target == self.of and link.source in self.others and self.direction != "out"

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "of": self.of,
            "others": sorted(self.others),
            "direction": self.direction,
            "only_control": self.only_control,
            "cut": self.effect.is_cut,
            "delay_s": self.effect.delay_s,
            "bits_per_s": self.effect.bits_per_s,
            "reset": self.effect.resets,
            "half": self.effect.halves,
        }

    @staticmethod
    def from_json(row: object) -> Rule:
        """Raises BadRule."""
        if not isinstance(row, Mapping):
            raise BadRule(f"expected a rule, found {type(row).__name__}")
        unknown = set(row) - set(_EXAMPLE)
        if unknown:
            raise BadRule(f"a rule has no {', '.join(map(repr, sorted(map(str, unknown))))}")
        found = {key: row.get(key, default) for key, default in _EXAMPLE.items()}
        for key in ("id", "of", "direction"):
            if not isinstance(found[key], str) or not found[key]:
                raise BadRule(f"{key}: expected a text")
        for key in ("only_control", "cut", "reset", "half"):
            if not isinstance(found[key], bool):
                raise BadRule(f"{key}: expected true or false")
        others, rate = found["others"], found["bits_per_s"]
        if not isinstance(others, list) or not others or not all(isinstance(other, str) for other in others):
            raise BadRule("others: expected a list of nodes")
        if found["direction"] not in DIRECTIONS:
            raise BadRule(f"direction: expected one of {', '.join(DIRECTIONS)}")
        if not _is_number(found["delay_s"]) or not 0 <= found["delay_s"] <= DELAY_MAX_S:
            raise BadRule(f"delay_s: expected a number from 0 to {DELAY_MAX_S:g}")
        if rate is not None and not (_is_number(rate) and RATE_MIN <= rate <= RATE_MAX):
            raise BadRule(f"bits_per_s: expected a number from {RATE_MIN} to {RATE_MAX}, or null")
        effect = Effect(found["cut"], float(found["delay_s"]), rate, found["reset"], found["half"])
        if effect == CLEAR:
            raise BadRule("a rule without an effect")
        return Rule(found["id"], found["of"], frozenset(others), effect, found["direction"], found["only_control"])


_EXAMPLE: Mapping[str, Any] = Rule("", "", frozenset(), CLEAR).to_json()


def effect_on(link: Link, rules: Iterable[Rule]) -> Effect:
    """All that is wrong with this link. A node always reaches itself."""
    found = CLEAR
    if link.source != link.target:
        for rule in rules:
            if rule.touches(link):
                found |= rule.effect
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
