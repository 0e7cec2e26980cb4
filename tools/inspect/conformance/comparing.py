"""The differences between two plain values, each with its place. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tools.inspect.conformance.normalising import IDENTITY, Plain

ABSENT = "<absent>"


class Difference(NamedTuple):
    """`path` leads to the value: names of fields with dots between, rows by what they are, such as `topics[{run}-topic].error_code`."""

    path: str
    reference: Plain
    subject: Plain


def differences(reference: Plain, subject: Plain, path: str = "") -> Iterator[Difference]:
    """All places where the values differ. A value that only one of them has is ABSENT in the other."""
    if isinstance(reference, Mapping) and isinstance(subject, Mapping):
        errors = [row.get("error_code", ABSENT) for row in (reference, subject)]
        if ABSENT not in errors and errors[0] != errors[1]:
            # The other fields follow from the error.
            yield Difference(f"{path}.error_code" if path else "error_code", *errors)
            return
        for name in {**reference, **subject}:
            if name == "error_message" and not reference.get(name):
                continue  # A message where the reference has none is no harm.
            inner = f"{path}.{name}" if path else name
            yield from differences(reference.get(name, ABSENT), subject.get(name, ABSENT), inner)
    elif _are_rows(reference) and _are_rows(subject):
        ours, theirs = _by_identity(reference), _by_identity(subject)
        for row in {**ours, **theirs}:
            yield from differences(ours.get(row, ABSENT), theirs.get(row, ABSENT), f"{path}[{row}]")
    elif not _is_same(reference, subject):
        yield Difference(path or "answer", reference, subject)


def _are_rows(value: Plain) -> bool:
    return isinstance(value, list) and all(isinstance(row, Mapping) for row in value)


def _by_identity(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Rows that are the same by their identity are numbered."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        # A label of an id is not an identity: the clusters may have made their ids in another order.
        names = ("key",) if "key" in row else IDENTITY
        parts = [str(row[name]) for name in names if row.get(name) not in (None, "") and name != "topic_id"]
        label = " ".join(parts) or "row"
        number = 1
        while (key := label if number == 1 else f"{label} #{number}") in found:
            number += 1
        found[key] = row
    return found


def _is_same(reference: Plain, subject: Plain) -> bool:
    if isinstance(reference, float) and isinstance(subject, float) and math.isnan(reference):
        return math.isnan(subject)
    return type(reference) is type(subject) and bool(reference == subject)
