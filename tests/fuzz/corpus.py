"""The inputs that are kept: one packed file for each decoder, with inputs that reach more code than its seeds.

`python -m tests.fuzz.corpus` makes them from the findings of the last runs (`.fuzz/`): smallest first, it keeps each input that runs
through the lines of the project in an order that no earlier input did.
"""

from __future__ import annotations

import contextlib
import sys
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
PACKED = HERE / "corpus"
WORK = HERE.parents[1] / ".fuzz"
BYTES_MAX = 6_000
"""The inputs of one decoder, before they are packed."""
PARTS = ("protocol", "broker", "controller", "tools")
ROOTS = tuple(f"{HERE.parents[1]}/{part}/" for part in PARTS)

Edges = frozenset[tuple[CodeType, int, int]]
"""(function, line before, line)."""


def read(name: str) -> list[bytes]:
    path = PACKED / f"{name}.z"
    if not path.exists():
        return []
    data = zlib.decompress(path.read_bytes())
    found = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], "big")
        found.append(data[at + 3 : at + 3 + size])
        at += 3 + size
    return found


def write(name: str, inputs: Iterable[bytes]) -> None:
    PACKED.mkdir(exist_ok=True)
    data = b"".join(len(item).to_bytes(3, "big") + item for item in inputs)
    path = PACKED / f"{name}.z"
    if data:
        path.write_bytes(zlib.compress(data, 9))
    else:
        path.unlink(missing_ok=True)


def edges_of(run: Callable[[bytes], object], data: bytes) -> Edges:
    """The pairs of project lines that run one after the other."""
    found: set[tuple[CodeType, int, int]] = set()

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(ROOTS):
            return None
        before = 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal before
            found.add((code, before, frame.f_lineno if event == "line" else -1))
            before = frame.f_lineno
            return line

        return line

    previous = sys.gettrace()
    sys.settrace(call)
    try:
        with contextlib.suppress(BaseException):
            run(data)
    finally:
        sys.settrace(previous)
    return frozenset(found)


def smallest(run: Callable[[bytes], object], seeds: Iterable[bytes], inputs: Iterable[bytes]) -> list[bytes]:
    """The inputs that reach code which no seed and no smaller input reaches."""
    known: set[tuple[CodeType, int, int]] = set()
    for seed in seeds:
        known |= edges_of(run, seed)
    kept = []
    left = BYTES_MAX
    for item in sorted(set(inputs), key=lambda item: (len(item), item)):
        if len(item) > left:
            break
        edges = edges_of(run, item)
        if not edges <= known:
            known |= edges
            kept.append(item)
            left -= len(item)
    return kept


def main() -> None:
    from tests.fuzz import harm
    from tests.fuzz.decoders import all_decoders

    total = 0
    for name, decoder in all_decoders().items():
        found = [path.read_bytes() for path in (WORK / name / "corpus").glob("*")]
        seeds = list(decoder.seeds())
        harmless = [data for data in {*found, *read(name)} if data not in seeds and harm.of(decoder, data)[0] is None]
        kept = smallest(decoder.run, seeds, harmless)
        write(name, kept)
        path = PACKED / f"{name}.z"
        size = path.stat().st_size if path.exists() else 0
        total += size
        print(f"{name:40} {len(found):6} inputs, {len(kept):4} kept, {size:6} bytes", flush=True)
    print(f"{total} bytes")


if __name__ == "__main__":
    main()
