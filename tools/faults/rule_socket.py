"""Gives rules about requests to the process that applies them to one broker's: the broker, or a proxy before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.conversation.rule import Rule
from protocol.json_lines import NoAnswer, NobodyListens
from tools.cluster.processes import ClusterError


@dataclass(frozen=True, slots=True)
class RuleSocket:
    """`asks`: as `json_lines.ask` at the socket. `who`: takes the rules, as errors name it. `why_not`: why nobody may listen there.

    The methods raise ClusterError.
    """

    asks: Callable[[Mapping[str, Any]], dict[str, Any]]
    who: str
    why_not: str

    def add(self, rule: Rule) -> None:
        try:
            self._ask({"add": [rule.to_json()]})
        except NobodyListens:
            raise ClusterError(f"{self.who} takes no rules about requests: {self.why_not}") from None

    def remove(self, ids: Sequence[str] | None) -> Sequence[str]:
        """None: all. Returns those that were there: none if nobody listens."""
        try:
            before = {row["rule"]["id"] for row in self._ask({"show": True})["rules"]}
            gone = sorted(before if ids is None else before & set(ids))
            if gone:
                self._ask({"remove": gone})
        except NobodyListens:
            return ()  # it takes none, or has just started
        return gone

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Raises NobodyListens, ClusterError."""
        try:
            return self.asks(request)
        except NobodyListens:
            raise
        except NoAnswer as problem:
            raise ClusterError(f"{self.who} takes no rule: {problem}") from None
