"""Reads a workload file: the YAML from which `ottla replay trace make` makes a trace (RPL-5). Errors name line and key.

docs/WORKLOADS.md explains each key; example_workload.yaml shows most of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from tools.points_in_time import NoTime, parse_duration_ms
from tools.replay.traces.schema import COMPRESSIONS, TraceError
from tools.yaml_nodes import NotYaml, nodes_of

EXAMPLE = Path(__file__).with_name("example_workload.yaml")

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
CLIENTS_MAX = 1000
KEYS_MAX = 10_000_000
PARTITIONS_MAX = 100_000
RECORD_MAX = 1024 * 1024
BATCH_BYTES = 16 * 1024
FETCH_BYTES = 1024 * 1024
DEFAULT_RATE_OF_CATCH_UP = 10 * 1024 * 1024

_UNITS_OF_SIZE = {"": 1, "B": 1, "kB": 1000, "MB": 10**6, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_PER = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Constant:
    """Records per second."""

    rate: float


@dataclass(frozen=True, slots=True)
class Poisson:
    rate: float


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A Poisson process whose rate is a cosine around `mean`, lowest at the start. `period_ns`: from one peak to the next."""

    mean: float
    peak: float
    period_ns: int


@dataclass(frozen=True, slots=True)
class Bursty:
    """A Poisson process with two rates (Markov-modulated). The time in each state is exponential, with the means given."""

    calm: float
    burst: float
    mean_calm_ns: int
    mean_burst_ns: int


Rate = Constant | Poisson | Diurnal | Bursty


@dataclass(frozen=True, slots=True)
class RecordSize:
    """`kind` and its parameters: constant (size), uniform (min, max), normal (mean, deviation), lognormal (median, sigma),
    weights (size, weight, size, weight ...). Sizes are bytes from 1 to `max`."""

    kind: str
    parameters: tuple[float, ...]
    max: int = RECORD_MAX


@dataclass(frozen=True, slots=True)
class Keys:
    """`exponent` of Zipf's law; 0: all keys are as frequent."""

    keys: int
    exponent: float


@dataclass(frozen=True, slots=True)
class Batching:
    """A batch leaves when it has `records`, or `bytes`, or when `linger_ns` have passed since its first record."""

    records: int | None
    linger_ns: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class ProducerSpec:
    name: str
    count: int
    topics: tuple[str, ...]
    rate: Rate
    record_size: RecordSize
    batching: Batching
    keys: Keys | None
    compression: str
    compression_ratio: float
    acks: int


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A reader that starts at `from_ns`, `behind` records behind the end, and reads `rate` bytes per second until it is there."""

    behind: int
    from_ns: int
    rate: float


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    name: str
    count: int
    topic: str
    group: str | None
    fan_out: int
    min_bytes: int
    max_wait_ns: int
    max_bytes: int
    catch_up: CatchUp | None


@dataclass(frozen=True, slots=True)
class Workload:
    """`topics`: name -> number of partitions."""

    duration_ns: int
    seed: int
    topics: Mapping[str, int]
    producers: tuple[ProducerSpec, ...]
    consumers: tuple[ConsumerSpec, ...]


def read_workload(file: Path) -> Workload:
    """Raises TraceError with file, line and key."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        raise TraceError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise TraceError(f"{file} cannot be read: {problem}") from None
    return parse_workload(text, str(file))


def parse_workload(text: str, where: str) -> Workload:
    """`where` stands in errors. Raises TraceError."""
    try:
        node = nodes_of(text, where)
    except NotYaml as problem:
        raise TraceError(str(problem)) from None
    if node is None:
        raise TraceError(f"{where} is empty; `ottla replay trace make --example` prints an example")
    return _workload(_Value(node, where, ""))


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of the file. `path` is its key, such as producers[0].rate."""

    node: yaml.Node
    where: str
    path: str

    def error(self, reason: str) -> TraceError:
        line = self.node.start_mark.line + 1
        return TraceError(f"{self.where}, line {line}: {self.path or 'the workload'}{reason}")

    def text(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(" must be a single value")
        return str(self.node.value)

    def items(self) -> list[_Value]:
        """The values of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(" must be a list")
        return [_Value(node, self.where, f"{self.path}[{number}]") for number, node in enumerate(self.node.value)]

    def pairs(self) -> list[tuple[_Value, _Value]]:
        """The keys and values of a mapping, each key once."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error(" must be a mapping, such as {name: value}")
        pairs: list[tuple[_Value, _Value]] = []
        seen: set[str] = set()
        for key_node, node in self.node.value:
            key = _Value(key_node, self.where, f"a key of {self.path or 'the workload'}")
            name = key.text()
            path = f"{self.path}.{name}" if self.path else name
            if name in seen:
                raise _Value(key_node, self.where, path).error(" is there twice")
            seen.add(name)
            pairs.append((key, _Value(node, self.where, path)))
        return pairs

    def fields(self, *known: str) -> _Fields:
        """The values of a mapping that has no other keys than `known`."""
        values = {}
        for key, value in self.pairs():
            if key.text() not in known:
                raise _Value(key.node, self.where, value.path).error(
                    f" is not known; the keys here are {', '.join(known)}"
                )
            values[key.text()] = value
        return _Fields(self, values)

    def choice(self, *known: str) -> tuple[str, _Value]:
        """The one key of a mapping such as {poisson: 5/s}, and its value."""
        pairs = self.pairs()
        if len(pairs) != 1 or pairs[0][0].text() not in known:
            raise self.error(f" must have one of the keys {', '.join(known)}")
        return pairs[0][0].text(), pairs[0][1]

    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    def number(self, least: float, most: float) -> float:
        try:
            value = float(self.text())
        except ValueError:
            raise self.error(f" is {self.text()!r}, not a number") from None
        return self._in_range(value, least, most)

    def whole(self, least: int, most: int) -> int:
        text = self.text()
        if not re.fullmatch(r"-?\d{1,18}", text):
            raise self.error(f" is {text!r}, not a whole number")
        return int(self._in_range(int(text), least, most))

    def duration_ns(self, least: int = 1, most: int = 3650 * 86400 * NS_PER_S) -> int:
        """Whole milliseconds: 500ms, 30s, 1h30m; also 0 if it is allowed."""
        text = self.text()
        try:
            value = 0 if text == "0" and least == 0 else parse_duration_ms(text) * NS_PER_MS
        except NoTime:
            raise self.error(f" is {text!r}, not a duration such as 500ms, 30s or 1h30m") from None
        if not least <= value <= most:
            raise self.error(f" is {text}, which is too {'short' if value < least else 'long'}")
        return value

    def size(self, least: int, most: int) -> int:
        """Bytes, with or without a unit: 100, 16KiB."""
        return int(self._in_range(round(self._quantity(self.text())), least, most))

    def rate(self, least: float = 1e-6, most: float = 1e8) -> float:
        """Records per second: 500/s, 10/min."""
        count, sign, unit = self.text().partition("/")
        try:
            value = float(count) / _PER[unit.strip()] if sign else float(count)
        except (ValueError, KeyError):
            raise self.error(f" is {self.text()!r}, not a rate such as 500/s; the units are /s, /min and /h") from None
        return self._in_range(value, least, most)

    def bytes_per_s(self) -> float:
        count, sign, unit = self.text().partition("/")
        if sign and unit.strip() != "s":
            raise self.error(f" is {self.text()!r}, not bytes per second such as 5MiB/s")
        return self._in_range(self._quantity(count), 1, 1e12)

    def name(self, pattern: re.Pattern[str]) -> str:
        text = self.text()
        if pattern.fullmatch(text) is None or text in (".", ".."):
            raise self.error(f" is {text!r}, which is not a valid name")
        return text

    def _quantity(self, text: str) -> float:
        found = _QUANTITY.fullmatch(text.strip())
        if found is None or found[2] not in _UNITS_OF_SIZE:
            raise self.error(
                f" is {text!r}, not a size such as 16KiB; the units are {', '.join(filter(None, _UNITS_OF_SIZE))}"
            )
        return float(found[1]) * _UNITS_OF_SIZE[found[2]]

    def _in_range(self, value: float, least: float, most: float) -> float:
        if not least <= value <= most:
            raise self.error(f" is {self.text()}, not from {least:.15g} to {most:.15g}")
        return value


@dataclass(frozen=True, slots=True)
class _Fields:
    """The values of a mapping whose keys are known."""

    of: _Value
    values: Mapping[str, _Value]

    def need(self, key: str) -> _Value:
        if key not in self.values:
            raise self.of.error(f" lacks {key}")
        return self.values[key]

    def get(self, key: str, read: Callable[[_Value], T], default: T) -> T:
        return read(self.values[key]) if key in self.values else default


def _workload(value: _Value) -> Workload:
    fields = value.fields("duration", "seed", "topics", "producers", "consumers")
    topics: dict[str, int] = {}
    for item in fields.need("topics").items():
        topic = item.fields("name", "partitions")
        name = topic.need("name").name(_TOPIC)
        if name in topics:
            raise topic.need("name").error(f": there is another topic {name}")
        topics[name] = topic.get("partitions", lambda one: one.whole(1, PARTITIONS_MAX), 1)
    producers = tuple(_producer(item, topics) for item in fields.need("producers").items())
    consumers = tuple(
        _consumer(item, topics) for item in (fields.need("consumers").items() if "consumers" in fields.values else ())
    )
    if not producers:
        raise fields.need("producers").error(" is empty: nothing would happen")
    for kind, specs in (("producers", producers), ("consumers", consumers)):
        names = [spec.name for spec in specs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise fields.need(kind).error(f": two have the name {twice}")
    return Workload(
        duration_ns=fields.need("duration").duration_ns(),
        seed=fields.get("seed", lambda one: one.whole(0, 2**63 - 1), 0),
        topics=topics,
        producers=producers,
        consumers=consumers,
    )


def _producer(value: _Value, topics: Mapping[str, int]) -> ProducerSpec:
    fields = value.fields(
        *("name", "count", "topics", "rate", "record_size", "batch", "keys", "compression", "compression_ratio", "acks")
    )
    named = fields.need("topics")
    items = [named] if isinstance(named.node, yaml.ScalarNode) else named.items()
    if not items:
        raise named.error(" is empty")
    return ProducerSpec(
        name=fields.need("name").name(_NAME),
        count=fields.get("count", _count, 1),
        topics=tuple(_topic(item, topics) for item in items),
        rate=_rate(fields.need("rate")),
        record_size=_record_size(fields.need("record_size")),
        batching=fields.get("batch", _batching, Batching(1, None, BATCH_BYTES)),
        keys=fields.get("keys", _keys, None),
        compression=fields.get("compression", lambda one: _one_of(one, COMPRESSIONS), "none"),
        compression_ratio=fields.get("compression_ratio", lambda one: one.number(0.001, 1), 1.0),
        acks={"all": -1, "-1": -1, "0": 0, "1": 1}[
            fields.get("acks", lambda one: _one_of(one, ("all", "1", "0", "-1")), "all")
        ],
    )


def _consumer(value: _Value, topics: Mapping[str, int]) -> ConsumerSpec:
    fields = value.fields(
        *("name", "count", "topic", "group", "fan_out", "min_bytes", "max_wait", "max_bytes", "catch_up")
    )
    group = fields.get("group", lambda one: one.name(_NAME), "none")
    return ConsumerSpec(
        name=fields.need("name").name(_NAME),
        count=fields.get("count", _count, 1),
        topic=_topic(fields.need("topic"), topics),
        group=None if group == "none" else group,
        fan_out=fields.get("fan_out", _count, 1),
        min_bytes=fields.get("min_bytes", lambda one: one.size(1, 2**31 - 1), 1),
        max_wait_ns=fields.get("max_wait", lambda one: one.duration_ns(10**6, 300 * NS_PER_S), NS_PER_S // 2),
        max_bytes=fields.get("max_bytes", lambda one: one.size(1, 2**31 - 1), FETCH_BYTES),
        catch_up=fields.get("catch_up", _catch_up, None),
    )


def _count(value: _Value) -> int:
    return value.whole(1, CLIENTS_MAX)


def _one_of(value: _Value, known: tuple[str, ...]) -> str:
    if value.text() not in known:
        raise value.error(f" is {value.text()!r}, not one of {', '.join(known)}")
    return value.text()


def _topic(value: _Value, topics: Mapping[str, int]) -> str:
    if value.text() not in topics:
        raise value.error(f" is {value.text()!r}, which is not in topics; there are {', '.join(topics) or 'none'}")
    return value.text()


def _rate(value: _Value) -> Rate:
    if not value.is_mapping():
        return Constant(value.rate())
    kind, inner = value.choice("constant", "poisson", "diurnal", "bursty")
    if kind == "constant":
        return Constant(inner.rate())
    if kind == "poisson":
        return Poisson(inner.rate())
    if kind == "diurnal":
        fields = inner.fields("mean", "peak", "period")
        mean, peak = fields.need("mean").rate(), fields.need("peak").rate()
        if not mean <= peak <= 2 * mean:
            raise fields.need("peak").error(f" is not from mean to 2 x mean ({mean:g} to {2 * mean:g} per second)")
        return Diurnal(mean, peak, fields.get("period", _Value.duration_ns, 86400 * NS_PER_S))
    fields = inner.fields("calm", "burst", "mean_calm", "mean_burst")
    calm, burst = fields.need("calm").rate(0), fields.need("burst").rate()
    if calm > burst:
        raise fields.need("burst").error(" is below calm")
    return Bursty(
        calm, burst, fields.need("mean_calm").duration_ns(10**6), fields.need("mean_burst").duration_ns(10**6)
    )


def _record_size(value: _Value) -> RecordSize:
    if not value.is_mapping():
        return RecordSize("constant", (value.size(1, RECORD_MAX),))
    kind, inner = value.choice("constant", "uniform", "normal", "lognormal", "weights")
    if kind == "constant":
        return RecordSize(kind, (inner.size(1, RECORD_MAX),))
    if kind == "weights":
        pairs = [(key.size(1, RECORD_MAX), weight.number(0, 1e9)) for key, weight in inner.pairs()]
        if not sum(weight for _, weight in pairs):
            raise inner.error(" has no weight above 0")
        return RecordSize(kind, tuple(number for pair in pairs for number in pair))
    if kind == "uniform":
        fields = inner.fields("min", "max")
        least, most = fields.need("min").size(1, RECORD_MAX), fields.need("max").size(1, RECORD_MAX)
        if least > most:
            raise fields.need("max").error(" is below min")
        return RecordSize(kind, (least, most))
    first, second = ("mean", "deviation") if kind == "normal" else ("median", "sigma")
    fields = inner.fields(first, second, "max")
    centre = fields.need(first).size(1, RECORD_MAX)
    spread = fields.need(second).size(0, RECORD_MAX) if kind == "normal" else fields.need(second).number(0, 10)
    return RecordSize(kind, (centre, spread), fields.get("max", lambda one: one.size(1, RECORD_MAX), RECORD_MAX))


def _batching(value: _Value) -> Batching:
    fields = value.fields("records", "linger", "bytes")
    records = fields.get("records", lambda one: one.whole(1, 1_000_000), None)
    linger = fields.get("linger", lambda one: one.duration_ns(0, 60 * NS_PER_S), None)
    if records is None and linger is None:
        raise value.error(" lacks records or linger")
    return Batching(records, linger, fields.get("bytes", lambda one: one.size(1, RECORD_MAX), BATCH_BYTES))


def _keys(value: _Value) -> Keys | None:
    if not value.is_mapping():
        _one_of(value, ("none",))
        return None
    kind, inner = value.choice("zipf", "uniform")
    fields = inner.fields("keys", "exponent") if kind == "zipf" else inner.fields("keys")
    exponent = fields.need("exponent").number(0, 10) if kind == "zipf" else 0.0
    return Keys(fields.need("keys").whole(1, KEYS_MAX), exponent)


def _catch_up(value: _Value) -> CatchUp:
    fields = value.fields("behind", "from", "rate")
    return CatchUp(
        behind=fields.need("behind").whole(1, 10**12),
        from_ns=fields.get("from", lambda one: one.duration_ns(0), 0),
        rate=fields.get("rate", _Value.bytes_per_s, float(DEFAULT_RATE_OF_CATCH_UP)),
    )
