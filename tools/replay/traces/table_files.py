"""Reads tables of events: CSV (also packed by gzip), Parquet, and JSON with one object per line. The content of a file tells which it is.

Every error names the file and the row or line. In a CSV file the header is row 1.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy
import pyarrow
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from protocol.plain_text import shortened
from tools.replay.traces.json_sizes import json_sizes
from tools.replay.traces.schema import TraceError, reason_of

ROWS = 32 * 1024
BLOCK_BYTES = 8 * 1024 * 1024
"""How much of a CSV file is parsed at once; also the limit of one of its rows."""
LINE_MAX = 64 * 1024 * 1024
HEADER_MAX = 1024 * 1024
NAMES_SHOWN = 30


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns to read. `values` empty: all columns. `unused` gets the others of the files' headers."""

    named: Sequence[str]
    values: Sequence[str] = ()
    unused: set[str] = field(default_factory=set)

    def of(self, file: Path, present: Sequence[str]) -> tuple[list[str], list[str]]:
        """The columns to read and those of the value, of a file that has the columns `present`. Raises TraceError."""
        for name in (*self.named, *self.values):
            if name not in present:
                raise TraceError(f"{file} has no column {name}; it has {_listed(present)}")
        values = list(self.values or present)
        self.unused.update(set(present) - {*self.named, *values})
        return list(dict.fromkeys([*self.named, *values])), values


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a file. `columns` has those that are named; `value_sizes`: the size of each row's value as JSON."""

    file: Path
    unit: str
    """`row` or `line`."""
    numbers: Sequence[int]
    """The number of each row in the file."""
    columns: dict[str, pyarrow.Array]
    value_sizes: NDArray[numpy.int64]

    def error(self, at: int, column: str, reason: str) -> TraceError:
        return TraceError(f"{self.file}: {self.unit} {self.numbers[at]}: column {column}: {reason}")


def rows_of(file: Path, wanted: Wanted) -> Iterator[Rows]:
    """The rows of a file, some at a time. Raises TraceError for a file that cannot be read."""
    try:
        with file.open("rb") as opened:
            start = opened.read(4)
        if start == b"PAR1":
            yield from _parquet_rows(file, wanted)
            return
        is_packed = start[:2] == b"\x1f\x8b"
        with gzip.open(file) if is_packed else file.open("rb") as stream:
            head = stream.read(HEADER_MAX)
        if not head.strip():
            raise TraceError(f"{file} is empty")
        with gzip.open(file) if is_packed else file.open("rb") as stream:
            first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
            if first == b"[":
                raise TraceError(
                    f"{file} is a JSON array; expected an object on each line, as `jq -c '.[]'` prints them"
                )
            if first == b"{":
                yield from _json_rows(file, cast(IO[bytes], stream), wanted)
            else:
                yield from _csv_rows(file, cast(IO[bytes], stream), head, wanted)
    except FileNotFoundError:
        raise TraceError(f"{file}: no such file") from None
    except EOFError:
        raise TraceError(f"{file}: the gzip file is cut off") from None
    except OSError as problem:
        raise TraceError(f"{file} cannot be read: {problem.strerror or problem}") from None


def _parquet_rows(file: Path, wanted: Wanted) -> Iterator[Rows]:
    first = 1
    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            names, values = wanted.of(file, opened.schema_arrow.names)
            for batch in opened.iter_batches(ROWS, columns=names):
                numbers = range(first, first + batch.num_rows)
                first += batch.num_rows
                columns = {name: batch[name] for name in wanted.named}
                yield Rows(file, "row", numbers, columns, json_sizes(batch.select(values), guess_types=False))
    except pyarrow.ArrowException as problem:
        raise TraceError(f"{file} is not a Parquet file that can be read: {reason_of(problem)}") from None


def _csv_rows(file: Path, stream: IO[bytes], head: bytes, wanted: Wanted) -> Iterator[Rows]:
    header = _header(file, head)
    names, values = wanted.of(file, header)
    bad: list[Any] = []

    def refuse(row: Any) -> str:
        bad.append(row)
        return "error"

    first = 2
    try:
        with pyarrow.csv.open_csv(
            stream,
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.string()),
                include_columns=names,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        ) as opened:
            for block in opened:
                for start in range(0, block.num_rows, ROWS):
                    batch = block.slice(start, ROWS)
                    numbers = range(first, first + batch.num_rows)
                    first += batch.num_rows
                    columns = {name: batch[name] for name in wanted.named}
                    yield Rows(file, "row", numbers, columns, json_sizes(batch.select(values), guess_types=True))
    except pyarrow.ArrowException as problem:
        if bad:
            expected, found, number = bad[0].expected_columns, bad[0].actual_columns, bad[0].number
            at = first if number is None else number
            raise TraceError(f"{file}: row {at}: expected {expected} columns, found {found}") from None
        raise TraceError(
            f"{file} is not a CSV file that can be read, after row {first - 1}: {reason_of(problem)}"
        ) from None


def _header(file: Path, head: bytes) -> list[str]:
    """The names in the first row of a CSV file. Raises TraceError."""
    try:
        names = next(csv.reader(io.StringIO(head.decode("utf-8-sig", "replace"), "")))
    except csv.Error:
        names = []
    if not names or not all(name.isprintable() and "\ufffd" not in name for name in names):
        raise TraceError(f"{file} is not a CSV, Parquet or JSON file: its first row is not a header in UTF-8")
    for name in names:
        if names.count(name) > 1:
            raise TraceError(f"{file}: row 1: the header has the column {shortened(name, 60)!r} twice")
    return names


def _json_rows(file: Path, stream: IO[bytes], wanted: Wanted) -> Iterator[Rows]:
    seen: set[str] = set()
    numbers: list[int] = []
    objects: list[dict[str, Any]] = []
    sizes: list[int] = []
    for number, line in enumerate(iter(lambda: stream.readline(LINE_MAX), b""), 1):
        if not line.strip():
            continue
        row = _json_object(file, number, line)
        seen.update(row)
        chosen = {name: row[name] for name in wanted.values if name in row} if wanted.values else row
        numbers.append(number)
        objects.append(row)
        sizes.append(len(json.dumps(chosen, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")))
        if len(objects) == ROWS:
            yield _rows_of_objects(file, numbers, objects, sizes, wanted)
            numbers, objects, sizes = [], [], []
    if {*wanted.named, *wanted.values} <= seen and objects:
        yield _rows_of_objects(file, numbers, objects, sizes, wanted)
    wanted.of(file, sorted(seen))


def _json_object(file: Path, number: int, line: bytes) -> dict[str, Any]:
    if len(line) >= LINE_MAX:
        raise TraceError(f"{file}: line {number}: it has more than {LINE_MAX // 2**20} MiB")
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise TraceError(f"{file}: line {number}: not UTF-8") from None
    except json.JSONDecodeError as problem:
        raise TraceError(f"{file}: line {number}, column {problem.colno}: not JSON: {problem.msg}") from None
    except (ValueError, RecursionError):
        raise TraceError(
            f"{file}: line {number}: not JSON that can be read: too deep, or a number of too many digits"
        ) from None
    if not isinstance(row, dict):
        raise TraceError(f'{file}: line {number}: expected an object, as in {{"time": 1}}; each line is one event')
    return row


def _rows_of_objects(
    file: Path, numbers: list[int], objects: list[dict[str, Any]], sizes: list[int], wanted: Wanted
) -> Rows:
    """Texts and numbers stay what they are. In a column that has both, and for other values, texts are their JSON."""
    columns = {}
    for name in wanted.named:
        values = [row.get(name) for row in objects]
        kinds = {type(value) for value in values} - {type(None)}
        columns[name] = _column(values, kinds)
    return Rows(file, "line", numbers, columns, numpy.array(sizes, numpy.int64))


def _column(values: list[Any], kinds: set[type]) -> pyarrow.Array:
    if kinds and kinds <= {int, float}:
        try:
            return pyarrow.array(values, pyarrow.int64() if kinds == {int} else pyarrow.float64())
        except (OverflowError, pyarrow.ArrowInvalid):
            pass
    return pyarrow.array([None if value is None else _text(value) for value in values], pyarrow.string())


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode(errors="replace").decode()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(shortened(name, 60) for name in names[:NAMES_SHOWN]) + more
