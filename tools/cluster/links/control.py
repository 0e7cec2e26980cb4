"""Sends the rules of links to their process, as JSON lines over a Unix socket in the run directory.

    {"add": [rule, ...]}    {"remove": [id, ...]}    {"remove": null} removes all    {"show": true}

Each answer is `{"rules": [...], "connections": n}` after the change, or `{"error": text}`, in which case nothing was changed.
`control_server.py` answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protocol.json_lines import NoAnswer, Refused, ask
from tools.cluster.links.rules import Rule


class NoLinks(Exception):
    """The links cannot be told anything; the message says why."""


class LinksControl:
    """The client's side. The methods raise NoLinks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, rules: Sequence[Rule]) -> None:
        self._ask({"add": [rule.to_json() for rule in rules]})

    def remove(self, ids: Sequence[str] | None) -> None:
        """None: all rules."""
        self._ask({"remove": None if ids is None else list(ids)})

    def rules(self) -> list[Rule]:
        return [Rule.from_json(row) for row in self._ask({"show": True})["rules"]]

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return ask(self._path, request)
        except Refused as problem:
            raise NoLinks(f"the links refuse that: {problem}") from None
        except NoAnswer as problem:
            raise NoLinks(f"the links at {self._path} do not answer: {problem}") from None
