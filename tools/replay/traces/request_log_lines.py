"""Reads the lines of Kafka's request log (`kafka.request.logger` at DEBUG or TRACE), in both of its formats.

Since Kafka 2.8, a line is JSON after `Completed request:`:

    [2026-01-31 12:00:00,123] DEBUG Completed request:{"isForwarded":false,"requestHeader":{...,"requestApiKeyName":"FETCH"},
    "request":{...},"response":{...},"connection":"LOCAL-REMOTE-N","totalTimeMs":2.4,...,"listener":"PLAINTEXT",...} (kafka.request.logger)

Before, it is text, in the notation of Kafka's `Struct.toString`:

    [2020-01-31 12:00:00,123] DEBUG Completed request:RequestHeader(apiKey=PRODUCE, apiVersion=8, clientId=a, correlationId=4) --
    {acks=-1,timeout=30000,partitionSizes=[foo-0=74]},response:{responses=[{topic=foo,partition_responses=[{partition=0,
    error_code=0,base_offset=5,...}]}],...} from connection LOCAL-REMOTE-N;totalTime:2.4,...,listener:PLAINTEXT,...

The names of the text's fields are turned into those of the JSON (`base_offset` into `baseOffset`); a few differ all the same.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

COMPLETED = "Completed request:"
TOTAL_TIME = ("totalTimeMs", ";totalTime:")

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[,.](\d{3})\d*(Z|[+-]\d\d:?\d\d)?")
_API_OF_JSON = re.compile(r'"requestApiKeyName":"([A-Z_]+)"')
_TEXT = re.compile(
    r"RequestHeader\(apiKey=(?P<api>[A-Z_]+), apiVersion=\d+, clientId=(?P<client>.*?), correlationId=-?\d+\)"
    r" -- (?P<request>.*),response:(?P<response>.*) from connection (?P<connection>[^;]*)"
    r";totalTime:(?P<total>[^,]+),requestQueueTime:(?P<queue>[^,]+),localTime:(?P<local>[^,]+),.*?(?:listener:(?P<listener>[^, )]*))"
)
_PUNCTUATION = re.compile(r"[\[\](){},]")
_FIELD = re.compile(r"([A-Za-z_]+)=")
_NUMBER = re.compile(r"-?\d+")
_FILE_RECORDS = re.compile(r"start=(\d+), end=(\d+)")
_SIZED_RECORDS = re.compile(r"Records\(size=(\d+)")


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
    place: str = ""
    """File and line, for errors."""

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
        if any(name in line for name in TOTAL_TIME):
            raise CutOff(f"the line has no {COMPLETED!r}, only the end of a request")
        return None
    if line.startswith("RequestHeader(apiKey=", at + len(COMPLETED)):
        if TOTAL_TIME[1] not in line:
            raise CutOff("the line is cut off: it has no totalTime")
        start = at + len(COMPLETED) + len("RequestHeader(apiKey=")
        return line[start : line.index(",", start)]
    found = _API_OF_JSON.search(line, at)
    if found is None or TOTAL_TIME[0] not in line:
        raise CutOff("the line is cut off: it has no requestApiKeyName or no totalTimeMs")
    return found[1]


def parse_line(line: str, zone: tzinfo) -> CompletedRequest:
    """Reads a line for which `api_of` gives a name. Raises CutOff, also for a line without a time."""
    moment = moment_of(line, zone)
    if moment is None:
        raise CutOff(f"the line has no time such as 2026-01-31 12:00:00,123 before {COMPLETED!r}")
    start = line.index(COMPLETED) + len(COMPLETED)
    if line.startswith("RequestHeader(", start):
        return _parse_text(line, start, moment)
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


def _parse_text(line: str, start: int, moment: int) -> CompletedRequest:
    found = _TEXT.match(line, start)
    if found is None:
        raise CutOff("the line is cut off or damaged: no header, response, connection, totalTime and listener")
    try:
        return CompletedRequest(
            api=found["api"],
            client=found["client"],
            connection=found["connection"],
            listener=found["listener"],
            completed_ns=moment,
            total_ns=_ns(found["total"]),
            local_ns=_ns(found["queue"]) + _ns(found["local"]),
            request=_struct(found["request"]),
            response=_struct(found["response"]),
        )
    except (ValueError, IndexError, RecursionError) as problem:
        raise CutOff(f"the line is cut off or damaged: {_reason(problem)}") from None


def _ns(milliseconds: float | str) -> int:
    return round(float(milliseconds) * 1e6)


def _reason(problem: Exception) -> str:
    return f"no {problem}" if isinstance(problem, KeyError) else str(problem).partition("\n")[0]


def _struct(text: str) -> dict[str, Any]:
    """The struct that is the whole text; {} if there is none. Raises ValueError."""
    if not text.startswith("{"):
        return {}
    value, end = _value(text, 0, in_struct=False)
    if end != len(text) or not isinstance(value, dict):
        raise ValueError("a struct ends early")
    return value


def _value(text: str, at: int, in_struct: bool) -> tuple[Any, int]:
    """The value that starts at `at`, and where it ends: a struct {name=value,...}, a list [value,...], a number or a text."""
    if text.startswith("{", at):
        struct: dict[str, Any] = {}
        at += 1
        while not text.startswith("}", at):
            name = _FIELD.match(text, at)
            if name is None:
                raise ValueError(f"no field name where {text[at : at + 20]!r} is")
            struct[_json_name(name[1])], at = _value(text, name.end(), in_struct=True)
            at += text.startswith(",", at)
        return struct, at + 1
    if text.startswith("[", at):
        values = []
        at += 1
        while not text.startswith("]", at):
            value, at = _value(text, at, in_struct=False)
            values.append(value)
            at += text.startswith(",", at)
        return values, at + 1
    end = _end_of_scalar(text, at, in_struct)
    return _scalar(text[at:end]), end


def _end_of_scalar(text: str, at: int, in_struct: bool) -> int:
    """A text is not quoted. It ends before a closing bracket of an outer level, or before a comma. In a
    struct, the next field's name must follow the comma."""
    depth = 0
    for found in _PUNCTUATION.finditer(text, at):
        sign = found[0]
        if sign in "([{":
            depth += 1
        elif sign in ")]}" and depth:
            depth -= 1
        elif sign in "]}" or (sign == "," and not depth and (not in_struct or _FIELD.match(text, found.end()))):
            return found.start()
    raise ValueError("a struct has no end")


def _scalar(text: str) -> Any:
    if _NUMBER.fullmatch(text):
        return int(text)
    if text == "null":
        return None
    sized = _SIZED_RECORDS.search(text)  # MemoryRecords, FileRecords, LazyDownConversionRecords of Kafka 2.4 and newer
    if sized is not None:
        return {"recordsSizeInBytes": int(sized[1])}
    if text.startswith("FileRecords(file="):
        bounds = _FILE_RECORDS.search(text)
        if bounds is not None:
            return {"recordsSizeInBytes": int(bounds[2]) - int(bounds[1])}
    return text


@lru_cache(maxsize=1024)
def _json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
