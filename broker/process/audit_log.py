"""The audit log: one JSON line for each handshake of TLS and each login that is refused, and each request that is denied.

    {"time_ms":...,"kind":"login_refused","address":"10.0.0.7","listener":"CLIENTS","user":"bob","mechanism":"PLAIN","reason":"..."}
    {"time_ms":...,"kind":"handshake_refused","address":"10.0.0.7","listener":"SSL","reason":"its certificate is not valid: ..."}
    {"time_ms":...,"kind":"denied","address":"10.0.0.7","principal":"User:bob","operation":"Write","resource":"Topic:orders",...}

Kafka has the denials in the log of `kafka.authorizer.logger`. Clients decide how often that happens, and must neither fill a disk nor push
each other out of the log:

* The file is rotated: all files together have a fixed size.
* A *source* is an address, or after a login an address and a principal. It may write a burst, and then a line in a second. What it caused
  without a line is in its next one, as `left_out`.
* All sources together have a rate, too. `left_out_of_others`: what was left out of sources that are forgotten since.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from broker.process.clock import Clock
from broker.process.event_log import EventLog
from broker.process.rotated_file import AUDIT_LOG_ROTATION
from protocol.plain_text import shortened

AUDIT_LOG_NAME: Final = "audit.jsonl"
BURST: Final = 100
"""Lines of one source that may be written at once."""
LINES_PER_S: Final = 1.0
"""Lines of one source that may be written per second after a burst."""
ALL_BURST: Final = 1000
ALL_LINES_PER_S: Final = 20.0
SOURCES_MAX: Final = 10_000
"""Limit of the sources that are known. The one that was known first is forgotten."""
TEXT_MAX: Final = 250
"""Characters of a name that a client gives."""


class AuditLog:
    """Without a path it writes nothing."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._clock = clock
        self._lines = EventLog(path, clock, AUDIT_LOG_ROTATION) if path is not None else None
        self._all = _Source(ALL_BURST, clock.monotonic())
        self._sources: dict[str, _Source] = {}
        self._left_out_of_others = 0

    def login_refused(self, address: str, listener: str, user: str, mechanism: str, reason: str) -> None:
        """`user`, `mechanism`: what the client has said until then, or "". Anybody can name any user, so the source is the address."""
        said = {"user": shortened(user, TEXT_MAX), "mechanism": shortened(mechanism, TEXT_MAX)}
        self._add("login_refused", address, address=address, listener=listener, **said, reason=reason)

    def handshake_refused(self, address: str, listener: str, reason: str) -> None:
        """`reason`: what was wrong with the handshake of TLS, or with the name in the client's certificate."""
        said = shortened(reason, TEXT_MAX)
        self._add("handshake_refused", address, address=address, listener=listener, reason=said)

    def denied(self, address: str, principal: str, operation: str, resource: str, api: str) -> None:
        """`resource`: its type and name, such as `Topic:orders`."""
        who = shortened(principal, TEXT_MAX)
        what = {"operation": operation, "resource": shortened(resource, TEXT_MAX), "api": api}
        self._add("denied", f"{address} {who}", address=address, principal=who, **what)

    def _add(self, kind: str, source: str, **fields: Any) -> None:
        if self._lines is None:
            return
        now = self._clock.monotonic()
        of_source = self._sources.get(source)
        if of_source is None:
            if len(self._sources) >= SOURCES_MAX:
                self._left_out_of_others += self._sources.pop(next(iter(self._sources))).left_out
            of_source = self._sources[source] = _Source(BURST, now)
        if not (of_source.may_write(now, BURST, LINES_PER_S) and self._all.may_write(now, ALL_BURST, ALL_LINES_PER_S)):
            of_source.left_out += 1
            return
        of_source.lines -= 1
        self._all.lines -= 1
        if of_source.left_out:
            fields["left_out"], of_source.left_out = of_source.left_out, 0
        if self._left_out_of_others:
            fields["left_out_of_others"], self._left_out_of_others = self._left_out_of_others, 0
        self._lines.write(kind, **fields)


class _Source:
    """A token bucket: `lines` more may be written, as of `at`."""

    __slots__ = ("at", "left_out", "lines")

    def __init__(self, burst: int, now: float) -> None:
        self.lines = float(burst)
        self.at = now
        self.left_out = 0

    def may_write(self, now: float, burst: int, per_s: float) -> bool:
        self.lines = min(burst, self.lines + (now - self.at) * per_s)
        self.at = now
        return self.lines >= 1
