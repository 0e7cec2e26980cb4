"""What the owner of a process says about its rules, line by line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.conversation.rule import DROP, BadRule, Rule
from protocol.conversation.rule_book import RuleBook
from protocol.conversation.rule_lines import RuleLines

DROPS = {"id": "a", "effect": "drop", "apis": [12]}


class Owned:
    """A book, and what was called."""

    def __init__(self) -> None:
        self.book = RuleBook(lambda: 0.0)
        self.closed = self.changed = 0
        self._lines = RuleLines(self.book, self._close, self._change, self._check)

    def _close(self) -> None:
        self.closed += 1

    def _change(self) -> None:
        self.changed += 1

    def _check(self, rule: Rule) -> None:
        if rule.principal:
            raise BadRule("nobody knows principals here")

    def ask(self, request: object) -> Any:
        return self._lines.answer(json.dumps(request).encode())


def test_rules_are_added_shown_and_removed() -> None:
    owned = Owned()
    (row,) = owned.ask({"add": [DROPS]})["rules"]
    assert (row["rule"]["effect"], row["seen"], row["hits"]) == (DROP, 0, 0)
    assert len(owned.ask({"add": [{**DROPS, "id": "b"}]})["rules"]) == 2
    assert [row["rule"]["id"] for row in owned.ask({"remove": ["a", "unknown"]})["rules"]] == ["b"]
    assert owned.ask({"show": True})["rules"][0]["rule"]["id"] == "b"
    assert owned.ask({"remove": None}) == {"rules": []}
    assert owned.changed == 5


def test_idle_connections_are_closed_once_and_leave_no_rule() -> None:
    owned = Owned()
    assert owned.ask({"add": [{"id": "c", "effect": "close-idle"}]}) == {"rules": []}
    assert owned.closed == 1


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"add": [DROPS, {**DROPS, "id": "p", "principal": "alice"}]}, "nobody knows principals here"),
        ({"add": [DROPS, {"id": "x", "effect": "explode"}]}, "'explode' is no effect"),
        ({"add": [DROPS], "more": 1}, "expected add, remove or show"),
        ({"remove": [1]}, "expected add, remove or show"),
        ([], "expected add, remove or show"),
    ],
)
def test_nothing_changes_with_an_error(request_: object, said: str) -> None:
    owned = Owned()
    assert said in owned.ask(request_)["error"]
    assert not owned.book.live
    assert not owned.changed


def test_what_is_not_json_is_an_error() -> None:
    owned = Owned()
    assert "error" in RuleLines(owned.book, int, int).answer(b"\xff{")
