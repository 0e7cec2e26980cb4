"""Clones of clients: the same requests again, from further clients, a little later. Pure: rows in, rows out.

The clones of client `c` are `c-1`, `c-2` and so on. Each clone is late by a part of the mean gap between two requests of `c`, so that
they do not all send at once. Clones are in the group of their client, because the group has more to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import numpy
import pyarrow
import pyarrow.compute

from tools.replay.traces.schema import SCHEMA


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """The requests of a client: their number, and the times of the first and the last."""

    requests: int
    first_ns: int
    last_ns: int

    @property
    def mean_gap_ns(self) -> float:
        return (self.last_ns - self.first_ns) / max(1, self.requests - 1)


@dataclass(frozen=True, slots=True)
class Clones:
    """How to clone each client of a trace: all that `with_clones` needs."""

    request_span: int
    """The highest request number less the lowest, plus 1: what a clone adds to its request numbers for each clone before it."""
    names: Mapping[str, tuple[str, ...]]
    """Client -> the client itself, then its clones."""
    delays_ns: Mapping[str, tuple[int, ...]]
    """Client -> 0, then how late each clone is."""


def clones_of(clients: Mapping[str, ClientLoad], copies: int, request_span: int, seed: int = 0) -> Clones:
    """Each client `copies` times, itself included. The same seed gives the same delays."""
    separator = "-"
    while any(f"{name}{separator}{copy}" in clients for name in clients for copy in range(1, copies)):
        separator += "-"
    names, delays = {}, {}
    for name, load in clients.items():
        names[name] = (name, *(f"{name}{separator}{copy}" for copy in range(1, copies)))
        random = Random(f"{seed} {name}")
        delays[name] = (0, *(int(random.random() * load.mean_gap_ns) for _ in range(1, copies)))
    return Clones(request_span, names, delays)


def with_clones(rows: pyarrow.RecordBatch, clones: Clones) -> pyarrow.RecordBatch:
    """The rows of a trace and those of all clones. They are not in the order of time.

    `offset` becomes null: the logs are longer than the recorded ones. Raises KeyError for a client that is not in `clones`.
    """
    clients = rows["client"].dictionary_encode()
    known = clients.dictionary.to_pylist()
    names = numpy.array([clones.names[name] for name in known], object)
    delays = numpy.array([clones.delays_ns[name] for name in known], numpy.int64)
    places = clients.indices.to_numpy()
    copies = names.shape[1] if len(known) else 1
    changed = rows.set_column(
        rows.schema.get_field_index("offset"), SCHEMA.field("offset"), pyarrow.nulls(rows.num_rows, pyarrow.int64())
    )
    return pyarrow.concat_batches(
        [
            _replaced(
                changed,
                time_ns=pyarrow.compute.add(rows["time_ns"], pyarrow.array(delays[places, copy])),
                request=pyarrow.compute.add(rows["request"], copy * clones.request_span),
                client=pyarrow.array(names[:, copy], pyarrow.string()).take(clients.indices),
            )
            for copy in range(copies)
        ]
    )


def _replaced(rows: pyarrow.RecordBatch, **columns: pyarrow.Array) -> pyarrow.RecordBatch:
    return pyarrow.record_batch([columns.get(name, rows[name]) for name in rows.schema.names], schema=rows.schema)
