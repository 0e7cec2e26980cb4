"""One decoder under atheris until its time is over: `python -m tests.fuzz.worker MODULE NAME SECONDS DIRECTORY HOW`.

`run.py` starts it. The directory gets `corpus/`, `found/` (an input that does harm, and beside it why and how to repeat it) and
`counts.json`. A finding does not end the run; only what ends the process does.
"""

from __future__ import annotations

import json
import logging
import resource
import shlex
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import atheris

from tests.fuzz import corpus, harm
from tests.fuzz.decoders import all_decoders
from tests.support.mutations import mutate

MEMORY_MAX = 4 << 30
"""Memory limit of the process. A decoder that asks for more gets a MemoryError or aborts; both are findings."""
MEMORY_EVERY = 64
LINES_EVERY = 512
COUNTED_EVERY_S = 2.0
KINDS_MAX = 20


class Worker:
    def __init__(self, module: str, name: str, directory: Path, is_instrumented: bool) -> None:
        logging.getLogger("broker").setLevel(logging.CRITICAL)
        with atheris.instrument_imports(include=list(corpus.PARTS) if is_instrumented else ["none"]):
            self.decoder = all_decoders((module,))[name]
        self.directory = directory
        self.inputs = self.taken = self.harmful = 0
        self.kinds: dict[str, int] = {}
        self._random = Random()
        self._seeds = list(self.decoder.seeds())
        self._counted_at = 0.0
        for part in ("corpus", "found"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        for number, data in enumerate([*self._seeds, *corpus.read(name)]):
            (directory / "corpus" / f"known-{number:05d}").write_bytes(data)

    def one_input(self, data: bytes) -> None:
        self.inputs += 1
        found, is_taken = harm.of(self.decoder, data)
        self.taken += is_taken
        if found is None and self.inputs % MEMORY_EVERY == 0:
            found = harm.too_large(self.decoder, data)
        if found is None and self.inputs % LINES_EVERY == 0:
            found = harm.too_long(self.decoder, data)
        if found is not None:
            self._note(found, data)
        if self.inputs % 64 == 0 and time.monotonic() - self._counted_at > COUNTED_EVERY_S:
            self._count()

    def _note(self, found: harm.Harm, data: bytes) -> None:
        self.harmful += 1
        is_new = found.kind not in self.kinds
        self.kinds[found.kind] = self.kinds.get(found.kind, 0) + 1
        path = self.directory / "found" / found.slug
        if len(self.kinds) > KINDS_MAX or (not is_new and path.stat().st_size <= len(data)):
            return
        path.write_bytes(data)
        command = f"python -m tests.fuzz.run --repeat {shlex.quote(str(path))} --decoder {self.decoder.name}"
        path.with_suffix(".txt").write_text(f"{found.kind}\n\n{found.text}\n\n{data!r}\n\n{command}\n")
        self._count()

    def _count(self) -> None:
        self._counted_at = time.monotonic()
        content = {"inputs": self.inputs, "taken": self.taken, "harmful": self.harmful, "kinds": self.kinds}
        (self.directory / "counts.json").write_text(json.dumps(content))

    def mutated(self, data: bytes, size_max: int, seed: int) -> bytes:
        """libFuzzer makes half of the inputs; the mutator of live traffic makes the other half."""
        if seed & 1:
            changed: bytes = atheris.Mutate(data, size_max)
            return changed
        return mutate(data, self._random, self._seeds, size_max)


def main(module: str, name: str, seconds: str, directory: str, instrumented: str) -> None:
    worker = Worker(module, name, Path(directory), instrumented == "instrumented")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    options: list[Any] = [
        f"-max_total_time={seconds}",
        f"-max_len={worker.decoder.bytes_max}",
        f"-artifact_prefix={directory}/found/",
        "-timeout=20",
        "-rss_limit_mb=3000",
        "-use_value_profile=1",
        "-print_final_stats=1",
        "-reload=0",
    ]
    atheris.Setup([sys.argv[0], *options, f"{directory}/corpus"], worker.one_input, custom_mutator=worker.mutated)
    worker._count()
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
