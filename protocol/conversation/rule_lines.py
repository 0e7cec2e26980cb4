"""Carries out what the owner of a process says about its rules: lines of JSON, by the socket of `protocol/json_lines.py`.

    {"add": [rule, ...]}    {"remove": [id, ...]}    {"remove": null} removes all    {"show": true}

The answer has all rules that are in force, with what they have seen and hit: `{"rules": [{"rule": ..., "seen": n, "hits": n}, ...]}`; or it
is `{"error": text}`, and then nothing has changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.conversation.rule import CLOSE_IDLE, BadRule, Rule
from protocol.conversation.rule_book import RuleBook


def any_rule(_: Rule) -> None:
    """Nothing is wrong with it."""


@dataclass
class RuleLines:
    """`close_idle`: closes the connections that wait for nothing. `changed`: other rules may be in force now.

    `check` raises BadRule for a rule that can hit nothing here.
    """

    book: RuleBook
    close_idle: Callable[[], None]
    changed: Callable[[], None]
    check: Callable[[Rule], None] = any_rule

    def answer(self, line: bytes) -> Mapping[str, Any]:
        """Of one line, which may be anything."""
        try:
            self._carry_out(json.loads(line))
        except (BadRule, ValueError, OverflowError, RecursionError) as problem:
            return {"error": str(problem)}
        self.changed()
        rows = [{"rule": each.rule.to_json(), "seen": each.seen, "hits": each.hits} for each in self.book.live]
        return {"rules": rows}

    def _carry_out(self, request: object) -> None:
        match request:
            case {"add": list(rows), **rest} if not rest:
                rules = [Rule.from_json(row) for row in rows]
                for rule in rules:
                    self.check(rule)
                self.book.add(rule for rule in rules if rule.effect != CLOSE_IDLE)
                if any(rule.effect == CLOSE_IDLE for rule in rules):
                    self.close_idle()
            case {"remove": list(ids), **rest} if not rest and all(isinstance(each, str) for each in ids):
                self.book.remove(ids)
            case {"remove": None, **rest} if not rest:
                self.book.remove(None)
            case {"show": True, **rest} if not rest:
                pass
            case _:
                raise BadRule("expected add, remove or show")
