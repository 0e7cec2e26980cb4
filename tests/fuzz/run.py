"""`make fuzz MINUTES=10 [DECODER='request-*']`: all decoders under atheris, on all cores, for so long in all.

Prints for each decoder how many inputs it got, how many of them it took, what new coverage they brought, and what did harm. The exit
code is 1 when something did. The findings are in `.fuzz/<decoder>/found/`, with a command that repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from tests.fuzz import corpus, harm
from tests.fuzz.decoders import MODULES, all_decoders

NICENESS = 10
SECONDS_MIN = 3
SLOW_SHARE = 2.0
"""A slow decoder gets this many times more time than others, and still fewer inputs."""
GRACE_S = 90
RESTARTS_MAX = 5

_COVERAGE = re.compile(r"cov: (\d+)")
_EXECUTED = re.compile(r"(?:number_of_executed_units: +|^#)(\d+)", re.MULTILINE)


class Job(NamedTuple):
    module: str
    name: str
    seconds: int
    is_instrumented: bool


class FuzzResult(NamedTuple):
    """`coverage`: at the start, at the end; `kinds`: what did harm, and how often."""

    name: str
    inputs: int
    seconds: float
    taken: float
    coverage: tuple[int, int]
    kinds: dict[str, int]

    def line(self) -> str:
        before, after = self.coverage
        rate = self.inputs / max(self.seconds, 0.001)
        return (
            f"{self.name:40} {self.inputs:12,} inputs {rate:9,.0f}/s  {self.taken:4.0%} taken  "
            f"coverage {before:5} +{after - before:<4} {len(self.kinds):3} findings"
        )


def jobs_of(minutes: float, cores: int, wanted: str | None) -> list[Job]:
    decoders = [(module, decoder) for module in MODULES for decoder in all_decoders((module,)).values()]
    patterns = wanted.split(",") if wanted else ["*"]
    chosen = [(module, d) for module, d in decoders if any(fnmatch(d.name, pattern) for pattern in patterns)]
    if not chosen:
        raise SystemExit(f"no decoder is called {wanted}: " + ", ".join(decoder.name for _, decoder in decoders))
    shares = [SLOW_SHARE if decoder.is_slow else 1.0 for _, decoder in chosen]
    seconds = minutes * 60 * min(cores, len(chosen)) / sum(shares)
    return [
        Job(module, decoder.name, max(SECONDS_MIN, round(seconds * share)), decoder.is_instrumented)
        for (module, decoder), share in zip(chosen, shares, strict=True)
    ]


def fuzz(job: Job) -> FuzzResult:
    """Runs a worker until the job's time is over. Starts it again if it ended early."""
    directory = corpus.WORK / job.name
    directory.mkdir(parents=True, exist_ok=True)
    inputs = taken = counted = 0
    spent = 0.0
    coverage: list[int] = []
    kinds: dict[str, int] = {}
    for _ in range(RESTARTS_MAX):
        left = round(job.seconds - spent)
        if left < 1:
            break
        began = time.monotonic()
        code, text = _worker(job, left, directory)
        used = time.monotonic() - began
        spent += min(used, left)
        inputs += max(map(int, _EXECUTED.findall(text)), default=0)
        coverage += map(int, _COVERAGE.findall(text))
        counts = json.loads((directory / "counts.json").read_text())
        taken += counts["taken"]
        counted += counts["inputs"]
        for kind, count in counts["kinds"].items():
            kinds[kind] = kinds.get(kind, 0) + count
        if code == 0:
            break
        kinds[f"the process ended with {code}"] = kinds.get(f"the process ended with {code}", 0) + 1
        (directory / "found" / "last.log").write_text(text[-20_000:])
    return FuzzResult(
        job.name,
        inputs,
        max(spent, 1.0),
        taken / max(counted, 1),
        (coverage[0], max(coverage)) if coverage else (0, 0),
        kinds,
    )


def _worker(job: Job, seconds: int, directory: Path) -> tuple[int, str]:
    (directory / "counts.json").write_text(json.dumps({"inputs": 0, "taken": 0, "harmful": 0, "kinds": {}}))
    how = "instrumented" if job.is_instrumented else "plain"
    command = [sys.executable, "-m", "tests.fuzz.worker", job.module, job.name, str(seconds), str(directory), how]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    ) as process:
        try:
            text, _ = process.communicate(timeout=seconds + GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
    return process.returncode, text


def run_all(jobs: Sequence[Job], cores: int) -> list[FuzzResult]:
    queue: SimpleQueue[Job] = SimpleQueue()
    for job in sorted(jobs, key=lambda job: -job.seconds):
        queue.put(job)
    outcomes: list[FuzzResult] = []

    def work() -> None:
        while True:
            try:
                job = queue.get_nowait()
            except Empty:
                return
            outcomes.append(fuzz(job))
            print(outcomes[-1].line(), flush=True)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(cores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def repeat(path: Path, name: str) -> int:
    """Runs an input that did harm again."""
    decoder, data = all_decoders()[name], path.read_bytes()
    found = harm.of(decoder, data)[0] or harm.too_large(decoder, data) or harm.too_long(decoder, data)
    print(f"{found.kind}\n{found.text}" if found is not None else f"{len(data)} bytes do no harm")
    return int(found is not None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--decoder", help="names or patterns with commas between: request-*,batches")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=Path, help="a file out of .fuzz/<decoder>/found; --decoder says whose")
    given = parser.parse_args()
    if given.repeat is not None:
        return repeat(given.repeat, given.decoder)
    os.nice(NICENESS)
    outcomes = run_all(jobs_of(given.minutes, given.cores, given.decoder), given.cores)
    harmful = [outcome for outcome in outcomes if outcome.kinds]
    for outcome in harmful:
        print(f"\n{outcome.name}: see {corpus.WORK / outcome.name / 'found'}")
        for kind, count in sorted(outcome.kinds.items()):
            print(f"  {count:6} times  {kind}")
    total = sum(outcome.inputs for outcome in outcomes)
    print(f"\n{total:,} inputs over {len(outcomes)} decoders, {sum(len(o.kinds) for o in harmful)} findings")
    return int(bool(harmful))


if __name__ == "__main__":
    sys.exit(main())
