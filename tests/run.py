"""Runs the tests for `make test` (quick) and `make test-thorough` (thorough).

    python -m tests.run quick|thorough

Two groups of tests run side by side, because some need a processor and others mostly wait for starts and time-outs. When
one ends, the next one begins, also after a failure. A group's output is printed when the group ends; the summary at the
end names every group. The exit code is 1 when one of them failed.

A quick run leaves out the tests with the marker `thorough`; a thorough run has only these. `tests/conftest.py` gives the
marker to all tests that need a real Kafka or Docker.

Brokers are plain Python. If the compiled form is there, a thorough run repeats the tests of AGAIN on compiled brokers: the
quick ones, and those with Kafka's own clients. The summary says in which form they ran.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from broker import compiled

REPOSITORY = Path(__file__).resolve().parent.parent
LOGS = REPOSITORY / ".test-logs"
NO_TESTS_SELECTED = 5
SIDE_BY_SIDE = 2
SILENCE_S_MAX = 60
CLEANUP_S_MAX = 30
SUMMARY_LINES = re.compile(r"(FAILED|ERROR|SKIPPED|LEFT RUNNING) ")
AGAIN = ("compiled", "consumer_groups", "failover", "single_broker", "transactions")
"""The files of integration tests that a thorough run repeats on compiled brokers: as many as the time allows. Together they pass
through all modules that are compiled."""
SLOWEST = ("--durations=15", "--durations-min=2")
"""Each group's output ends with its slowest tests."""
LAST_LINE = re.compile(r"=+ (.*(?:passed|failed|error|skipped|deselected|no tests ran).*) in [0-9.]+s")


class Interrupted(Exception):
    """SIGINT or SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True)
class Group:
    """Commands of one name."""

    name: str
    command: tuple[str, ...]


def tests(name: str, *paths: str, only: str) -> Group:
    options = shlex.split(os.environ.get("PYTEST_OPTIONS", ""))
    return Group(
        name, (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *SLOWEST, *paths, "-m", only, *options)
    )


def groups_of(run: str) -> list[Group]:
    """In the order in which they begin: what takes longest comes early, so that both sides end at about the same time."""
    only = "thorough" if run == "thorough" else "not thorough"
    directory = REPOSITORY / "tests" / "integration"
    found = sorted(str(path.relative_to(REPOSITORY)) for path in directory.glob("test_*.py"))
    commands = [path for path in found if fnmatch(Path(path).name, "test_*_cli*.py")]
    replay = [path for path in found if Path(path).name.startswith(("test_replay_", "test_recorder"))]
    groups = [
        tests("integration", "tests/integration", *(f"--ignore={path}" for path in [*commands, *replay]), only=only),
        tests("unit", "tests/unit", "tests/sim", "tests/fuzz", only=only),
        tests("commands", *commands, only=only),
        tests("replay", *replay, only=only),
        tests("hostile", "tests/hostile", only=only),
    ]
    if run == "quick":
        return [Group("checks", ("make", "--no-print-directory", "check")), *groups]
    if compiled.form()[0]:
        again = [f"tests/integration/test_{name}.py" for name in AGAIN]
        repeated = tests("compiled", *again, only="not thorough or kafka")
        groups.insert(1, Group(repeated.name, ("env", "--unset", compiled.SWITCH, *repeated.command)))
    return [*groups, tests("clients", "tests/clients", only=only), tests("compose", "tests/compose", only=only)]


class Runner:
    """What runs now, and what came of the rest."""

    def __init__(self, groups: Sequence[Group], form: str = "plain Python") -> None:
        """`form` is that of the brokers, in words."""
        self._form = form
        self._waiting = deque(groups)
        self._start = time.monotonic()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._results: list[tuple[Group, int, float]] = []
        self._lock = threading.Lock()
        self._is_stopped = False

    def run(self) -> int:
        LOGS.mkdir(exist_ok=True)
        threads = [threading.Thread(target=self._run_groups) for _ in range(SIDE_BY_SIDE)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(SILENCE_S_MAX)
                    self._say_progress()
        except Interrupted as interrupted:
            self._stop(interrupted.number, threads)
            return 128 + interrupted.number
        return self._summarize()

    def _stop(self, number: int, threads: Sequence[threading.Thread]) -> None:
        """pytest cleans up after one SIGINT, and not after two; a terminal has sent it to all processes already."""
        self._is_stopped = True
        if number == signal.SIGINT:
            for thread in threads:
                thread.join(CLEANUP_S_MAX)
        with self._lock:
            for process in self._running.values():
                process.send_signal(signal.SIGINT)
        for thread in threads:
            thread.join()

    def _run_groups(self) -> None:
        while True:
            start = time.monotonic()
            with self._lock:
                if self._is_stopped or not self._waiting:
                    return
                group = self._waiting.popleft()
                log = log_of(group).open("wb")
                process = subprocess.Popen(group.command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT)
                self._running[group.name] = process
            exit_code = process.wait()
            log.close()
            with self._lock:
                del self._running[group.name]
                if exit_code == NO_TESTS_SELECTED:
                    exit_code = 0
                self._results.append((group, exit_code, time.monotonic() - start))
                print(f"\n=== {group.name}: {shlex.join(group.command)} ===", flush=True)
                sys.stdout.buffer.write(log_of(group).read_bytes())
                sys.stdout.flush()

    def _say_progress(self) -> None:
        with self._lock:
            parts = []
            for name in self._running:
                percents = re.findall(r"\[ *(\d+%)\]", (LOGS / f"{name}.log").read_text(errors="replace"))
                parts.append(f"{name} {percents[-1] if percents else '...'}")
            if parts:
                print(f"after {time.monotonic() - self._start:.0f} s: {', '.join(parts)}", flush=True)

    def _summarize(self) -> int:
        """Prints what failed or was skipped, and a line for each group. -> the exit code"""
        has_failed = any(exit_code for _, exit_code, _ in self._results)
        print("\n" + "=" * 100)
        for group, exit_code, seconds in self._results:
            lines = log_of(group).read_text(errors="replace").splitlines()
            counts = [found[1] for line in lines if (found := LAST_LINE.search(line))]
            verdict = f"FAILED ({exit_code})" if exit_code else "passed"
            print(f"{verdict:<12} {group.name:<12} {seconds:4.0f} s   {counts[-1] if counts else ''}")
            for line in lines:
                if SUMMARY_LINES.match(line):
                    print(f"    {line}")
        print(f"brokers: {self._form}")
        verdict = "FAILED" if has_failed else "PASSED"
        print(f"{verdict} after {time.monotonic() - self._start:.0f} s; the whole output is in {LOGS.name}/")
        print("=" * 100, flush=True)
        return int(has_failed)


def log_of(group: Group) -> Path:
    return LOGS / f"{group.name}.log"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in ("quick", "thorough"):
        print("usage: python -m tests.run quick|thorough", file=sys.stderr)
        return 2

    def interrupt(number: int, _: object) -> None:
        raise Interrupted(number)

    # A shell starts what runs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    is_compiled, compiled_form = compiled.form()
    groups = groups_of(arguments[0])
    form = "plain Python"
    if arguments[0] == "thorough":
        form += (
            f"; in the group `compiled`: {compiled_form}" if is_compiled else "; SKIPPED the tests on compiled brokers"
        )
    os.environ[compiled.SWITCH] = "0"
    # The tests start hundreds of processes. Without bytecode on the disk, each of them compiles every module that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"brokers: {form}", flush=True)
    return Runner(groups, form).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
