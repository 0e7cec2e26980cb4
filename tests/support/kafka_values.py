"""Random values that Kafka's messages hold, and whole messages."""

from __future__ import annotations

import random
import types
import typing
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from random import Random
from typing import Any

Values = Callable[[Random], Any]


def dice(count: int) -> Iterator[Random]:
    """For that many examples. A test that fails shows the seed of its last example, which `Random(seed)` makes again."""
    for _ in range(count):
        seed = random.getrandbits(32)
        print(f"seed {seed}")
        yield Random(seed)


def numbers(least: int, most: int) -> Values:
    """Half of them are the least and the most, and those around 0."""
    special = [number for number in (least, -1, 0, 1, most) if least <= number <= most]
    return lambda dice: dice.choice(special) if dice.random() < 0.5 else dice.randint(least, most)


def one_of(*values: Values) -> Values:
    return lambda dice: dice.choice(values)(dice)


def just(value: Any) -> Values:
    return lambda dice: value


def dictionaries(values: dict[str, Values]) -> Values:
    return lambda dice: {name: draw(dice) for name, draw in values.items()}


error_codes = numbers(-1, 107)
durations_ms = numbers(0, 2**31 - 1)
names = one_of(
    lambda dice: "".join(dice.choices("ab.-_ \0\n\x7fé\u2028中\uffff😀", k=dice.randint(0, 20))),
    lambda dice: "t" * dice.randint(100, 249),
)
blobs = one_of(lambda dice: dice.randbytes(dice.randint(0, 50)), lambda dice: bytes(dice.randint(100, 20_000)))

VALUES: dict[str, Values] = {
    "bool": lambda dice: dice.random() < 0.5,
    "int8": numbers(-128, 127),
    "int16": numbers(-(2**15), 2**15 - 1),
    "int32": numbers(-(2**31), 2**31 - 1),
    "int64": numbers(-(2**63), 2**63 - 1),
    "float64": lambda dice: dice.choice((0.0, -1.0, 1.5, 1e308, float("inf"))),  # not NaN, which differs from itself
    "string": names,
    "bytes": blobs,
    "records": blobs,
    "error_code": error_codes,
    "timedelta_i32": durations_ms,
    "timedelta_i64": durations_ms,
    "datetime_i64": numbers(-1, 4_000_000_000_000),
    "uuid": lambda dice: uuid.UUID(int=dice.randint(1, 2**128 - 1)),  # 0 is kio's None
}
SMALL = VALUES | {
    "string": lambda dice: dice.choice(("", "t", "orders", "g", "consumer", "range", "topic-ä", "c-1", "x" * 130)),
    "bytes": lambda dice: dice.randbytes(dice.choice((0, 1, 20))),
    "records": lambda dice: dice.randbytes(dice.choice((0, 1, 20))),
}
"""For the fuzzer's first inputs."""
NULL_IS_A_VALUE = ("datetime_i64", "uuid")

Special = tuple[tuple[str, Values], ...]


@cache
def bodies(schemas: Sequence[Any], special: Special = (), *, are_small: bool = False) -> Values:
    """Bodies in our form, for the first of kio's schemas: its fields, and those that only the other schemas have.

    `special` has the values of some fields, by name.
    """
    kinds: dict[str, tuple[list[Any], str | None]] = {}
    for schema in schemas:
        hints = typing.get_type_hints(schema)
        for field in fields(schema):
            kinds.setdefault(field.name, ([], field.metadata.get("kafka_type")))[0].append(hints[field.name])
    found = {name: _values(hints, kafka_type, special, are_small) for name, (hints, kafka_type) in kinds.items()}
    return dictionaries(found | {name: values for name, values in special if name in found})


def _values(hints: Sequence[Any], kafka_type: str | None, special: Special, are_small: bool) -> Values:
    if _is_union(hints[0]):
        inner = _values([_without_null(hint) for hint in hints], kafka_type, special, are_small)
        return inner if kafka_type in NULL_IS_A_VALUE else one_of(just(None), inner)
    hints = [_without_null(hint) for hint in hints]
    if typing.get_origin(hints[0]) is tuple:
        element = _values([typing.get_args(hint)[0] for hint in hints], kafka_type, special, are_small)
        return lambda dice: [element(dice) for _ in range(dice.randrange(3))]
    if is_dataclass(hints[0]):
        return bodies(tuple(hints), special, are_small=are_small)
    assert kafka_type is not None
    return (SMALL if are_small else VALUES)[kafka_type]


def _without_null(hint: Any) -> Any:
    return next((inner for inner in typing.get_args(hint) if _is_union(hint) and inner is not type(None)), hint)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)
