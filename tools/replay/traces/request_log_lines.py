"""Reads the lines of Kafka's request log (`kafka.request.logger` at DEBUG or TRACE), which are JSON after `Completed request:`.

    [2026-01-31 12:00:00,123] DEBUG Completed request:{"isForwarded":false,"requestHeader":{...,"requestApiKeyName":"FETCH"},
    "request":{...},"response":{...},"connection":"LOCAL-REMOTE-N","totalTimeMs":2.4,...,"listener":"PLAINTEXT",...} (kafka.request.logger)

Before Kafka 2.8, lines have another format, which is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

COMPLETED = "Completed request:"
OLD_FORMAT = "RequestHeader("
TOTAL_TIME = "totalTimeMs"

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[,.](\d{3})\d*(Z|[+-]\d\d:?\d\d)?")
_API_OF_JSON = re.compile(r'"requestApiKeyName":"([A-Z_]+)"')


class CutOff(ValueError):
    """The line is a part of a request's line. The text says what is missing."""


@dataclass(frozen=True, slots=True)
class CompletedRequest:
    """One line. `request` and `response` are {} if the line does not have them (acks 0; logging was switched on meanwhile)."""

    api: str
    client: str
    connection: str
    listener: str
    completed_ns: int
    """When the line was logged, in nanoseconds since 1970 UTC. The log has milliseconds."""
    total_ns: int
    local_ns: int
    """From the arrival until the leader had appended or read."""
    request: dict[str, Any]
    response: dict[str, Any]

    @property
    def arrived_ns(self) -> int:
        return self.completed_ns - self.total_ns

    @property
    def broker(self) -> str:
        """The broker's address, as far as the connection says it. `LOCAL-REMOTE-N`; a host name may have hyphens."""
        return self.connection.partition("-" + self.remote)[0]

    @property
    def remote(self) -> str:
        """The client's host and port."""
        return _remote(self.connection)

    @property
    def host(self) -> str:
        return self.remote.rpartition(":")[0]


@lru_cache(maxsize=4096)
def _remote(connection: str) -> str:
    found = re.fullmatch(r".*:\d+-(.+:\d+)-\d+(?:-\d+)?", connection)
    return connection if found is None else found[1]


def moment_of(line: str, zone: tzinfo) -> int | None:
    """The time at the start of a line, in nanoseconds since 1970 UTC; None if there is none. `zone` is that of the log."""
    found = _MOMENT.search(line, 0, line.find(COMPLETED) if COMPLETED in line else 100)
    if found is None:
        return None
    try:
        second = _second_ns(found[1], found[2], found[4], zone)
    except ValueError:
        return None
    return second + int(found[3]) * 1_000_000


@lru_cache(maxsize=64)
def _second_ns(day: str, clock: str, offset: str | None, zone: tzinfo) -> int:
    moment = datetime.fromisoformat(f"{day}T{clock}{offset or ''}")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1) * 1_000_000_000


def api_of(line: str) -> str | None:
    """The name of the API, without reading the whole line; None if the line is not of a request.

    Raises CutOff for a part of a request's line.
    """
    at = line.find(COMPLETED)
    if at < 0:
        if TOTAL_TIME in line:
            raise CutOff(f"the line has no {COMPLETED!r}, only the end of a request")
        return None
    if line.startswith(OLD_FORMAT, at + len(COMPLETED)):
        raise CutOff("the line is of a Kafka before 2.8, whose format is not read")
    found = _API_OF_JSON.search(line, at)
    if found is None or TOTAL_TIME not in line:
        raise CutOff("the line is cut off: it has no requestApiKeyName or no totalTimeMs")
    return found[1]


def parse_line(line: str, zone: tzinfo) -> CompletedRequest:
    """Reads a line for which `api_of` gives a name. Raises CutOff, also for a line without a time."""
    moment = moment_of(line, zone)
    if moment is None:
        raise CutOff(f"the line has no time such as 2026-01-31 12:00:00,123 before {COMPLETED!r}")
    start = line.index(COMPLETED) + len(COMPLETED)
    try:
        body, _ = json.JSONDecoder().raw_decode(line, start)
        return CompletedRequest(
            api=body["requestHeader"]["requestApiKeyName"],
            client=body["requestHeader"].get("clientId") or "",
            connection=body["connection"],
            listener=body.get("listener", ""),
            completed_ns=moment,
            total_ns=_ns(body["totalTimeMs"]),
            local_ns=_ns(body["requestQueueTimeMs"]) + _ns(body["localTimeMs"]),
            request=body["request"] or {},
            response=body["response"] or {},
        )
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise CutOff(f"the line is cut off or damaged: {_reason(problem)}") from None


def _ns(milliseconds: float) -> int:
    return round(float(milliseconds) * 1e6)


def _reason(problem: Exception) -> str:
    return f"no {problem}" if isinstance(problem, KeyError) else str(problem).partition("\n")[0]
