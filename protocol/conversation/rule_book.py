"""All rules: which of them hits a request, and what then happens to it and to its answer.

The oldest rule that hits a request decides; others do not count it. Who serves requests asks `hit` for each, and does what the Hit says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from protocol.conversation import api_errors, error_answers
from protocol.conversation.asked import Asked, Plain, outside_of_sessions, plain, topic_of
from protocol.conversation.leaders_before import LeadersBefore
from protocol.conversation.patterns import matches
from protocol.conversation.rule import (
    ANSWER,
    DELAY,
    DROP,
    GARBLE,
    HALVE,
    LEADERS_BEFORE,
    LOOKS_FOR_ROLES,
    LOOKS_WHO_SERVES,
    LOSE,
    REFUSE,
    THROTTLE,
    BadRule,
    Rule,
)
from protocol.errors import ErrorCode
from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import response_header
from protocol.kafka.wire import INT
from protocol.types import Buffer

RULES_MAX = 1000
TOLD_ONE_BY_ONE = 20
"""So many hits of a rule are told one by one; then, one a second tells how many there were."""
OF_USER = "User:"
"""ACLs and logs of Kafka have it before a principal's name; a rule may."""
PROTECTED_FROM = 21
"""Where the bytes of a batch begin that its checksum covers."""
FETCH_ANSWERS_READ_FAST = range(12, SUPPORTED[ApiKey.FETCH].max + 1)
"""The versions of Fetch whose answers `fetch_codec` reads."""
_LENGTH = 4


@dataclass(slots=True)
class Change:
    """What becomes of the answer. `rewrite`: its body, without the header. `loses`: it is not sent, and `cuts` the connection instead.

    `is_late`: only the answer shows whether the rule hits: then `rewrite` sets `has_hit`.
    """

    delay_s: float = 0.0
    loses: bool = False
    cuts: bool = False
    halves: bool = False
    mute_ms: int = 0
    rewrite: Callable[[bytes], bytes] | None = None
    is_late: bool = False
    has_hit: bool = False

    def rewritten(self, api_key: int, version: int, frame: bytes | bytearray) -> bytes | bytearray:
        """A whole answer, its length included."""
        if self.rewrite is None:
            return frame
        body_at = _LENGTH + len(response_header(api_key, version, 0))
        body = self.rewrite(bytes(frame[body_at:]))
        if self.is_late and not self.has_hit:
            return frame
        head = frame[_LENGTH:body_at]
        return (len(head) + len(body)).to_bytes(_LENGTH, "big") + head + body


@dataclass(slots=True)
class Hit:
    """At most one of the first four. `body`: of the answer, in place of the work. `drops`: the request is not handled, and nothing behind
    it on its connection is. `closes`: the connection ends. `frame`: is handled in place of the request's.

    `rule` None: no rule hit it; the answer makes the client name its partitions, so that one can. `late`: a rule of which only the answer
    shows whether it hits, too, and its Change.
    """

    rule: Rule | None
    body: bytes | None = None
    drops: bool = False
    closes: bool = False
    frame: bytes | None = None
    change: Change | None = None
    late: tuple[Rule, Change] | None = None

    @property
    def changes(self) -> Sequence[Change]:
        """What becomes of the answer, in order."""
        late = None if self.late is None else self.late[1]
        return [change for change in (late, self.change) if change is not None]

    @property
    def late_rule(self) -> Rule | None:
        """The late one, when the answer was rewritten and it has hit."""
        return self.late[0] if self.late is not None and self.late[1].has_hit else None


@dataclass(slots=True)
class Live:
    """A rule that is in force. `seen`: requests that it is about; `hits`: those that it has hit."""

    rule: Rule
    until: float
    random: Random
    seen: int = 0
    hits: int = 0
    next_claim: int = 0
    told_at: float = 0.0

    @property
    def is_spent(self) -> bool:
        """Whether it hits nothing more, as far as is known here: other brokers may have taken the rest of its `claims`."""
        rule = self.rule
        if rule.nth:
            return self.seen >= rule.nth
        return bool(rule.times) and (self.next_claim if rule.claims else self.hits) >= rule.times

    @property
    def needs_all_partitions(self) -> bool:
        """Whether a Fetch must name all its partitions, so that the rule finds its own, or the answer has the error for each."""
        rule = self.rule
        return bool(rule.topic or (rule.effect == ANSWER and ErrorCode[rule.error] not in error_answers.OF_SESSIONS))


@dataclass
class RuleBook:
    """`monotonic` counts seconds. `leaders` has the changes of leaders that were seen."""

    monotonic: Callable[[], float]
    leaders: LeadersBefore = field(default_factory=LeadersBefore)
    _live: dict[str, Live] = field(default_factory=dict)

    @property
    def live(self) -> Sequence[Live]:
        self._expire()
        return list(self._live.values())

    def add(self, rules: Iterable[Rule]) -> None:
        """A rule with a known id replaces the earlier one, and is the youngest. Raises BadRule if there are too many."""
        given = list(rules)
        if len(self._live) + len(given) > RULES_MAX:
            raise BadRule(f"more than {RULES_MAX} rules")
        for rule in given:
            self._live.pop(rule.id, None)
            until = self.monotonic() + rule.lasts_s if rule.lasts_s else float("inf")
            self._live[rule.id] = Live(rule, until, Random(f"{rule.seed} {rule.id}"))

    def take_over(self, live: Live) -> Live:
        """A rule of another broker, which ends at the same time. What it has seen and hit there does not count here."""
        rule = live.rule
        found = self._live[rule.id] = Live(rule, live.until, Random(f"{rule.seed} {rule.id}"))
        return found

    def remove(self, ids: Iterable[str] | None) -> None:
        """None: all."""
        for id_ in list(self._live) if ids is None else ids:
            self._live.pop(id_, None)

    def hit(self, asked: Asked) -> Hit | None:
        """What happens to the request; None: nothing."""
        if not self._live:
            return None
        self._expire()
        late: tuple[Rule, Change] | None = None
        for live in self._live.values():
            rule = live.rule
            if live.is_spent or not self._is_about(rule, asked):
                continue
            if live.needs_all_partitions and _is_in_session(asked):
                return _ended_session(asked)
            if not self._names(rule, asked) or not _can_be_hit(rule, asked):
                continue
            if rule.effect == GARBLE:
                late = late or (rule, self._garbling(live, asked))
            elif self._takes(live):
                live.hits += 1
                hit: Hit | None = self._hit(rule, asked, live.random)
                break
        else:
            hit = self._without_session(asked)
        if late is not None:
            hit = hit or Hit(None)
            hit.late = late
        return hit

    def hits_to_tell(self, rule: Rule) -> int | None:
        """How often the rule has hit requests, if that is to be told after its latest hit; None: not so soon again."""
        live, now = self._live.get(rule.id), self.monotonic()
        if live is None or (live.hits > TOLD_ONE_BY_ONE and now - live.told_at < 1):
            return None
        live.told_at = now
        return live.hits

    def _expire(self) -> None:
        now = self.monotonic()
        for live in [live for live in self._live.values() if live.until <= now]:
            del self._live[live.rule.id]

    def _is_about(self, rule: Rule, asked: Asked) -> bool:
        header = asked.header
        if not rule.is_about(header.api_key, header.api_version) or header.api_key in api_errors.BEFORE_LOGIN:
            return False
        if rule.effect == ANSWER and header.api_version < api_errors.since(ApiKey(header.api_key), rule.error):
            return False
        if rule.client:
            if not matches(header.client_id or "", rule.client):
                return False
        elif header.client_id in (LOOKS_FOR_ROLES, LOOKS_WHO_SERVES):
            return False
        if rule.principal and not matches(asked.principal, rule.principal.removeprefix(OF_USER)):
            return False
        if rule.listener and asked.listener.upper() != rule.listener.upper():
            return False
        return asked.is_of_broker == rule.of_brokers

    def _names(self, rule: Rule, asked: Asked) -> bool:
        names_all = asked.header.api_key == ApiKey.METADATA and asked.body is not None and not asked.topics
        if rule.topic and not names_all and not any(_is_one_of(rule, *each) for each in asked.topics.items()):
            return False
        if rule.group and not any(matches(group, rule.group) for group in asked.groups):
            return False
        return not rule.transactional_id or any(
            matches(name, rule.transactional_id) for name in asked.transactional_ids
        )

    def _takes(self, live: Live) -> bool:
        """Counts the request, and says whether it is one of those that the rule's limits leave."""
        rule = live.rule
        live.seen += 1
        if rule.nth and live.seen != rule.nth:
            return False
        if rule.every and live.seen % rule.every:
            return False
        if rule.probability < 1 and live.random.random() >= rule.probability:
            return False
        if not rule.times:
            return True
        return _claim(live) if rule.claims else live.hits < rule.times

    def _hit(self, rule: Rule, asked: Asked, random: Random) -> Hit:
        if rule.effect == ANSWER:
            return _answered(rule, asked)
        if rule.effect == DROP:
            return Hit(rule, closes=rule.cuts, drops=not rule.cuts)
        if rule.effect == REFUSE:
            return Hit(rule, closes=True)
        change = Change()
        if rule.effect == LOSE:
            change = Change(loses=True, cuts=rule.cuts)
        elif rule.effect == DELAY:
            change.delay_s = rule.seconds + random.uniform(-rule.spread_s, rule.spread_s)
        elif rule.effect == HALVE:
            change.halves = True
        elif rule.effect == LEADERS_BEFORE:
            when = self.monotonic() - rule.seconds
            change.rewrite = _plainly(asked, lambda body: self.leaders.outdated(body, when))
        elif rule.effect == THROTTLE:
            ms = change.mute_ms = round(1000 * rule.seconds)
            change.rewrite = _throttled(asked, ms)
        return Hit(rule, change=change)

    def _garbling(self, live: Live, asked: Asked) -> Change:
        """An answer without records of the rule's partitions has nothing to garble, and does not count."""
        change = Change(is_late=True)
        version = asked.header.api_version

        def takes() -> bool:
            change.has_hit = not live.is_spent and self._takes(live)
            live.hits += change.has_hit
            return change.has_hit

        def read_fast(body: bytes) -> bytes:
            buffer = bytearray(body)
            answer = fetch_codec.decode_response(version, memoryview(buffer), 0)
            found = [
                records
                for key, rows in answer.topics
                for row in rows
                for records in row.records
                if _can_be_garbled(
                    live.rule, key if isinstance(key, str) else asked.name_of(key), row.partition, records
                )
            ]
            if found and takes():
                _garble(live.random.choice(found), live.random)
            return bytes(buffer)

        def by_schema(body: Plain) -> Plain:
            found = [
                row
                for topic in body["responses"]
                for row in topic["partitions"]
                if _can_be_garbled(
                    live.rule, topic_of(topic, asked.name_of), row["partition_index"], row["records"] or b""
                )
            ]
            if found and takes():
                row = live.random.choice(found)
                records = bytearray(row["records"])
                _garble(records, live.random)
                row["records"] = bytes(records)
            return body

        change.rewrite = read_fast if version in FETCH_ANSWERS_READ_FAST else _plainly(asked, by_schema)
        return change

    def _without_session(self, asked: Asked) -> Hit | None:
        """A Fetch names all its partitions only outside of a session. While a rule is about some of them, none begins."""
        if asked.header.api_key != ApiKey.FETCH or asked.session_epoch != 0:
            return None
        if not any(
            live.needs_all_partitions and not live.is_spent and self._is_about(live.rule, asked)
            for live in self._live.values()
        ):
            return None
        return Hit(None, frame=asked.without_session())


def _can_be_hit(rule: Rule, asked: Asked) -> bool:
    """Whether the client would feel it. A request that cannot be read is left to whoever serves it, who will say so."""
    if rule.effect in (DROP, REFUSE):
        return True
    if rule.effect == ANSWER:
        return asked.fetch is not None or asked.body is not None
    if not asked.has_answer:
        return False
    key, version = asked.header.api_key, asked.header.api_version
    if rule.effect in (GARBLE, LEADERS_BEFORE, THROTTLE) and not asked.is_known:
        return False
    return rule.effect != THROTTLE or messages.throttle_time_at(key, version) is not None


def _answered(rule: Rule, asked: Asked) -> Hit:
    key, error = asked.header.api_key, ErrorCode[rule.error]
    if key in error_answers.STAMPED:
        return Hit(
            rule,
            change=Change(
                rewrite=_plainly(
                    asked,
                    lambda answer: error_answers.stamped(
                        answer, error, lambda topic: matches(topic, rule.topic or "*")
                    ),
                )
            ),
        )
    if not rule.topic or key not in error_answers.SPLIT or error in error_answers.OF_SESSIONS:
        return Hit(rule, body=_whole_body_with(asked, error))
    hit, rest = error_answers.split(
        asked.body or {}, asked.name_of, lambda topic, partition: _is_of(rule, topic, partition)
    )
    if not error_answers.has_rows(rest):
        return Hit(rule, body=_body_with(asked, hit, error))
    more = _answer_of(asked, _body_with(asked, hit, error))
    rewrite = _plainly(asked, lambda answer: error_answers.merged(answer, more))
    return Hit(rule, frame=_framed(asked, outside_of_sessions(rest)), change=Change(rewrite=rewrite))


def _is_one_of(rule: Rule, topic: str, partitions: Collection[int | None]) -> bool:
    return (rule.partition < 0 or None in partitions or rule.partition in partitions) and matches(topic, rule.topic)


def _is_of(rule: Rule, topic: str, partition: int | None) -> bool:
    return matches(topic, rule.topic) and (rule.partition < 0 or partition is None or partition == rule.partition)


def _is_in_session(asked: Asked) -> bool:
    """Whether it is a Fetch that names only those of its partitions that have changed."""
    return asked.header.api_key == ApiKey.FETCH and asked.session_epoch > 0


def _ended_session(asked: Asked) -> Hit:
    """The client's next Fetch names all partitions."""
    return Hit(None, body=_whole_body_with(asked, ErrorCode.FETCH_SESSION_ID_NOT_FOUND))


def _framed(asked: Asked, body: Plain) -> bytes:
    header = asked.header
    return messages.encode_request(header.api_key, header.api_version, header.correlation_id, header.client_id, body)


def _whole_body_with(asked: Asked, error: ErrorCode) -> bytes:
    if asked.fetch is not None:
        return error_answers.fetch_body_with(asked.header.api_version, asked.fetch, error)
    return _body_with(asked, asked.body or {}, error)


def _body_with(asked: Asked, body: Plain, error: ErrorCode) -> bytes:
    return error_answers.body_with(asked.header.api_key, asked.header.api_version, body, error)


def _answer_of(asked: Asked, body: bytes) -> Plain:
    """The body of an answer, read."""
    key, version = asked.header.api_key, asked.header.api_version
    found: Plain = plain(messages.decode_response(key, version, response_header(key, version, 0) + body)[1])
    return found


def _plainly(asked: Asked, change: Callable[[Plain], Plain]) -> Callable[[bytes], bytes]:
    """A change of the body of an answer, as one of the answer."""
    key, version = asked.header.api_key, asked.header.api_version
    return lambda body: messages.encode_response(key, version, change(_answer_of(asked, body)))


def _throttled(asked: Asked, ms: int) -> Callable[[bytes], bytes]:
    """The longer one of two throttle times. Where its place is known, nothing else is read: an answer may be long."""
    at = messages.throttle_time_at(asked.header.api_key, asked.header.api_version)
    if at is None or at == messages.AFTER_ROWS:
        return _plainly(asked, lambda body: {**body, "throttle_time": max(ms, body["throttle_time"])})

    def throttled(body: bytes) -> bytes:
        (of_quota,) = INT.unpack_from(body, at)
        return body[:at] + INT.pack(max(ms, of_quota)) + body[at + INT.size :]

    return throttled


def _can_be_garbled(rule: Rule, topic: str | None, partition: int, records: Buffer) -> bool:
    return len(records) > PROTECTED_FROM and (not rule.topic or _is_of(rule, topic or "", partition))


def _garble(records: Buffer, random: Random) -> None:
    """One bit of the first batch is another one, behind the fields that the checksum does not cover."""
    writable = memoryview(records)
    size = 12 + int.from_bytes(writable[8:12], "big")
    writable[random.randrange(PROTECTED_FROM, min(size, len(writable)))] ^= 1 << random.randrange(8)


def _claim(live: Live) -> bool:
    """Takes one of the rule's hits. The brokers of a machine take them from one directory."""
    while live.next_claim < live.rule.times:
        path = f"{live.rule.claims}/{live.next_claim}"
        live.next_claim += 1
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            continue
        except OSError:
            return False  # the directory has gone, and with it the rule
        return True
    return False
