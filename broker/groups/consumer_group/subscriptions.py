"""Which topics the members of a consumer group subscribe to, by name or by regular expression, as the last look found them. Pure.

A look is needed when the cluster's topics may be others, when a member names a topic that no look has found, and when a regular
expression is to be resolved: for a member that brings it, or again, after a while, because the member may see others by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Set
from operator import attrgetter

from broker.groups.consumer_group.member import ConsumerMember
from broker.groups.consumer_group.members import ConsumerMembers
from broker.groups.consumer_group.messages import Change, ConsumerGroupSettings, RegexResolved, Topics
from broker.groups.consumer_group.pace import Pace
from protocol.errors import ErrorCode, KafkaError

TOPICS_MAX = 20_000
"""Limit of the names that the members of a group subscribe to."""
LOOK_BYTES_MAX = 256 * 1024
"""A look resolves further regular expressions while they match fewer bytes of names: what it finds is one batch of the log."""
REGEX_BYTES, MATCH_BYTES = 500, 60
"""Approximate memory of a regular expression, and of a topic that it matches."""

State = tuple[object, ...]
STATE = (
    "topics",
    "hash",
    "resolved",
    "is_stale",
    "_has_new_names",
    "_unresolved",
    "_asked",
    "_refresh_at_s",
)
"""The attributes that `restore` puts back."""
_state_of: Callable[[object], State] = attrgetter(*STATE)


class Subscriptions:
    """`topics`: name -> id and number of partitions, None if there is no such topic. `resolved`: regular expression -> topics that match.
    The dicts are replaced, never changed."""

    def __init__(self, members: ConsumerMembers) -> None:
        self._members = members
        self.topics: Mapping[str, tuple[bytes, int] | None] = {}
        self.hash = 0
        """Of the topics that exist (KIP-1101)."""
        self.resolved: Mapping[str, frozenset[str]] = {}
        self.is_stale = True
        """A topic may have come, gone, or grown."""
        self._has_new_names = False
        self._unresolved: frozenset[str] = frozenset()
        """Regular expressions that may match others by now: the next heartbeat of a member that has one asks for it."""
        self._asked: Mapping[str, Topics] = {}
        """Regular expressions that the next look resolves, with the topics that the member may see."""
        self._refresh_at_s = 0.0

    @property
    def must_look(self) -> bool:
        return self.is_stale or self._has_new_names or bool(self._asked)

    @property
    def bytes(self) -> int:
        return sum(REGEX_BYTES + MATCH_BYTES * len(names) for names in self.resolved.values())

    @property
    def unresolved(self) -> int:
        """How many regular expressions of members no look has resolved yet."""
        return max(0, len(self._members.regexes) - len(self.resolved))

    def is_due(self, regex: str | None, now_s: float) -> bool:
        """Whether a member's heartbeat asks for its regular expression again."""
        return bool(regex) and (regex in self._unresolved or now_s >= self._refresh_at_s)

    def names(self) -> frozenset[str]:
        """All that a member subscribes to, or that its regular expression matches."""
        return frozenset(self._members.names).union(*self.resolved.values())

    def has(self, topic: str) -> bool:
        return topic in self._members.names or any(topic in topics for topics in self.resolved.values())

    def concern(self, topics: Set[str], *, has_moved: bool) -> bool:
        """Whether the members may care for changes of these topics. `has_moved`: one of them has come or gone. A regular expression that is
        not resolved yet may match any of them."""
        regexes = self._members.regexes.keys()
        if regexes and (has_moved or not regexes <= self.resolved.keys()):
            return True
        return not all(map(topics.isdisjoint, (self._members.names.keys(), *self.resolved.values())))

    # -- changes ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises KafkaError(INVALID_REQUEST) if there are too many."""
        if len(self._members.names) > TOPICS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"the members of a group subscribe to {TOPICS_MAX} topics at most, by name"
            )

    def ask(self, member: ConsumerMember, topics: Topics, settings: ConsumerGroupSettings, now_s: float) -> None:
        """For a heartbeat of the member. Raises KafkaError(INVALID_REGULAR_EXPRESSION)."""
        if not member.topics <= self.topics.keys():
            self._has_new_names = True
        if self._members.regexes and (self.is_stale or now_s >= self._refresh_at_s):
            self._unresolved = frozenset(self._members.regexes)
            self._refresh_at_s = now_s + settings.regex_refresh_ms / 1000
        regex = member.regex
        if regex and (regex not in self.resolved or regex in self._unresolved):
            topics.check(regex)
            self._unresolved -= {regex}
            self._asked = {**self._asked, regex: topics}

    def forget_unused(self, regex: str | None) -> list[Change]:
        """After a member that had it has gone, or has another one."""
        if not regex or regex in self._members.regexes or regex not in self.resolved:
            return []
        self.resolved = {other: names for other, names in self.resolved.items() if other != regex}
        return [RegexResolved(regex, None)]

    def look(self, topics: Topics) -> Generator[None, None, tuple[list[Change], bool]]:
        """Takes the topics as they are now. Whether they are others than before."""
        asked, self._asked = self._asked, {}
        if self.is_stale:  # perhaps since the last heartbeat of any member
            self._unresolved |= self._members.regexes.keys() - asked.keys()
        self.is_stale = self._has_new_names = False
        matches: dict[str, frozenset[str]] = {}
        left, size = dict(asked), 0
        for regex, seen in asked.items():
            if size >= LOOK_BYTES_MAX:
                break
            del left[regex]
            matching = matches[regex] = yield from seen.matching(regex)
            size += len(regex) + sum(map(len, matching))
        self._asked = {**left, **self._asked}  # the next look resolves them
        pace = Pace()
        found: dict[str, tuple[bytes, int] | None] = {}
        digest = hashlib.blake2b(digest_size=8)
        is_any = False
        names = set(self._members.names)
        for matching in {**self.resolved, **matches}.values():
            names |= matching
            if pace.has_done(1 + len(matching)):
                yield
        if pace.has_done(len(names)):
            yield
        for name in sorted(names):
            topic = found[name] = topics.find(name)
            if topic is not None:
                digest.update(b"%b\0%b%d;" % (name.encode(), *topic))
                is_any = True
            if pace.has_done(1):
                yield
        changed = {
            regex: matching
            for regex, matching in matches.items()
            if regex in self._members.regexes and self.resolved.get(regex) != matching
        }
        self.resolved = {**self.resolved, **changed}
        self.topics = found
        self._has_new_names = not self._members.names.keys() <= found.keys()  # a member may have come meanwhile
        before, self.hash = self.hash, int.from_bytes(digest.digest(), "big", signed=True) if is_any else 0
        return [RegexResolved(*row) for row in changed.items()], bool(changed) or self.hash != before

    # -- taking back --------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """For `restore`."""
        return _state_of(self)

    def restore(self, state: State) -> None:
        for name, value in zip(STATE, state, strict=True):
            setattr(self, name, value)
