"""Which rule touches which link, how effects add up, and which rules are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tools.cluster.links.rules import CONTROL, DATA, BadRule, Effect, Link, Rule, effect_on

CUT = Effect(is_cut=True)


def rule(**changed: Any) -> Rule:
    fields: dict[str, Any] = {"id": "r", "of": "2", "others": frozenset({"1"}), "effect": CUT}
    return Rule(**(fields | changed))


@pytest.mark.parametrize(
    ("of", "hears", "says", "control"),
    [
        (rule(), True, True, True),
        (rule(direction="in"), True, False, True),
        (rule(direction="out"), False, True, False),
        (rule(only_control=True), False, False, True),
        (rule(of="1", others=frozenset({"2"}), direction="in"), False, True, False),
        (rule(others=frozenset({"3"})), False, False, False),
    ],
)
def test_the_links_that_a_rule_touches(of: Rule, hears: bool, says: bool, control: bool) -> None:
    assert of.touches(Link("1", "2", DATA)) is hears
    assert of.touches(Link("2", "1", DATA)) is says
    assert of.touches(Link("1", "2", CONTROL)) is control


def test_effects_add_up_and_nobody_is_cut_from_itself() -> None:
    slow = rule(effect=Effect(delay_s=0.1, bits_per_s=5000.0))
    slower = rule(effect=Effect(delay_s=0.05, bits_per_s=2000.0, resets=True))
    assert effect_on(Link("1", "2", DATA), [slow, slower]) == Effect(False, 0.1, 2000.0, True)
    assert effect_on(Link("1", "3", DATA), [slow, slower]) == Effect()
    assert effect_on(Link("2", "2", DATA), [rule(others=frozenset({"2"}))]) == Effect()


def test_a_rule_is_written_and_read() -> None:
    full = rule(effect=Effect(True, 0.5, 1e6, True, True), direction="in", only_control=True)
    assert Rule.from_json(full.to_json()) == full


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"id": ""}, "id: expected a text"),
        ({"of": 3}, "of: expected a text"),
        ({"others": []}, "others: expected a list of nodes"),
        ({"others": [1]}, "others"),
        ({"direction": "up"}, "direction: expected one of both, in, out"),
        ({"cut": 1}, "cut: expected true or false"),
        ({"cut": False}, "a rule without an effect"),
        ({"delay_s": -1}, "delay_s"),
        ({"delay_s": float("nan")}, "delay_s"),
        ({"bits_per_s": 0}, "bits_per_s"),
        ({"speed": 1}, "a rule has no 'speed'"),
    ],
)
def test_rules_that_are_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRule, match=reason):
        Rule.from_json(rule().to_json() | changed)


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(BadRule, match="expected a rule, found list"):
        Rule.from_json([])
