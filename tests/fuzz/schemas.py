"""Values for any of kio's schemas, from a seeded random generator: the fuzzer's first inputs for each version of each API."""

from __future__ import annotations

import types
import typing
import uuid
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from random import Random
from typing import Any

_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_WORDS = ("", "t", "orders", "g", "consumer", "range", "topic-ä", "c-1", "x" * 130)

Make = Callable[[Random], Any]


@cache
def body_maker(schema: Any) -> Make:
    """A function that gives a body in the form that `protocol.kafka.messages` takes."""
    hints = typing.get_type_hints(schema)
    makers = [(f.name, _maker(hints[f.name], f.metadata.get("kafka_type"))) for f in fields(schema)]
    return lambda random: {name: make(random) for name, make in makers}


def _maker(hint: Any, kafka_type: str | None) -> Make:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = _maker(next(a for a in typing.get_args(hint) if a is not type(None)), kafka_type)
        if kafka_type in ("datetime_i64", "uuid"):
            return inner
        return lambda random: inner(random) if random.random() < 0.7 else None
    if typing.get_origin(hint) is tuple:
        element = _maker(typing.get_args(hint)[0], kafka_type)
        return lambda random: [element(random) for _ in range(random.choice((0, 1, 1, 2)))]
    if is_dataclass(hint):
        return body_maker(hint)
    if kafka_type in _INTEGERS:
        bits = _INTEGERS[kafka_type]
        return lambda random: random.choice(
            (0, 1, -1, random.randint(0, 127), random.getrandbits(bits) - (1 << bits - 1))
        )
    match kafka_type:
        case "bool":
            return lambda random: random.random() < 0.5
        case "string":
            return lambda random: random.choice(_WORDS)
        case "bytes" | "records":
            return lambda random: random.randbytes(random.choice((0, 1, 20)))
        case "error_code":
            return lambda random: random.randint(-1, 100)
        case "timedelta_i32" | "timedelta_i64":
            return lambda random: random.randint(0, 60_000)
        case "datetime_i64":
            return lambda random: random.randint(-1, 4_000_000_000_000)
        case "uuid":
            return lambda random: uuid.UUID(int=random.choice((7, random.getrandbits(128))))
    raise TypeError(f"unknown type {kafka_type} in a schema")
