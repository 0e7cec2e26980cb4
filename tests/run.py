"""Runs the tests for `make test` (quick), `make test-thorough` (thorough) and `make test-release` (release).

    python -m tests.run quick|thorough|release

Several groups of tests run side by side, because some need a processor and others mostly wait for starts and time-outs. When
one ends, the next one begins, also after a failure. A group's output is printed when the group ends; the summary at the
end names every group, and the versions of what the tests need. The exit code is 1 when a group failed. In a thorough run, and wherever
OTTLA_REPEAT_FAILURES is set, tests that failed are repeated first: `tests/repeats.py` says which failures are flaky and do not count.

A quick run leaves out the tests with the marker `thorough`; a thorough run has only these, but for those with the marker `release`, and a
release run has these, too. `tests/conftest.py` gives the marker `thorough` to all tests that need a real Kafka or Docker.

Brokers are plain Python. If the compiled form is there, a thorough run repeats the tests of AGAIN on compiled brokers: the
quick ones, and those with Kafka's own clients. The summary says in which form they ran.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from broker import compiled
from tests.repeats import SECONDS_MAX, Repeated, failed_tests, repeat, seed_of
from tests.versions import versions

REPOSITORY = Path(__file__).resolve().parent.parent
LOGS = REPOSITORY / ".test-logs"
FLAKY_LOGS = "flaky"
"""The directory in LOGS with the output of runs in which a test was flaky. Later runs do not overwrite it."""
TESTS_FAILED = 1
NO_TESTS_SELECTED = 5
ONLY = {"quick": "not thorough", "thorough": "thorough and not release", "release": "thorough"}
"""Run -> the tests that it selects."""
EVERYTHING = ("OTTLA_EVERY_PLACE", "OTTLA_TEST_CONFORMANCE")
"""Environment variables that a release run sets."""
REPEAT_FAILURES = "OTTLA_REPEAT_FAILURES"
"""The environment variable that makes a quick run repeat what failed, as `.ci/run` does."""
SIDE_BY_SIDE = {"quick": 4, "thorough": 3, "release": 3}
"""More would fit into the waiting of a thorough run, but its tests have limits that real Kafkas and Spark need for themselves."""
SILENCE_S_MAX = 60
POLL_S = 0.1
CLEANUP_S_MAX = 30
SUMMARY_LINES = re.compile(r"(FAILED|ERROR|SKIPPED|LEFT RUNNING) ")
AGAIN = ("compiled", "consumer_groups", "failover", "single_broker", "transactions")
"""The files of integration tests that a thorough run repeats on compiled brokers: as many as the time allows. Together they pass
through all modules that are compiled."""
FAILURES = (
    "test_chaos.py",
    "test_emptied_disks.py",
    "test_fail*.py",
    "test_fast_failure_detection.py",
    "test_*fault*.py",
    "test_controll*.py",
    "test_reassignment.py",
    "test_topic_deletion.py",
    "test_zk_*.py",
    "test_zookeeper_*.py",
)
"""The files of integration tests in which something is killed, stopped or cut off: they mostly wait."""
ON_SPARK = ("test_replay_analysis.py", "test_replay_on_a_cluster.py", "test_replay_secured.py")
"""The files of integration tests that take a thorough run longest, apart from the other replays."""
BESIDE_KAFKA = ("test_*kafka*.py", "test_closest_replica.py", "test_conformance.py", "test_transactions.py")
"""The files of integration tests that start Kafka's Java programs, or compare with a real Kafka."""
ORDER = {
    "quick": ("unit", "integration", "failures", "broker", "commands", "replay", "checks", "kafka", "hostile"),
    "thorough": (
        "replay",
        "spark",
        "broker",
        "integration",
        "clients",
        "unit",
        "kafka",
        "failures",
        "compose",
        "commands",
        "hostile",
        "compiled",
    ),
}
"""The groups of each run; a release run has those of a thorough one."""
SLOWEST = ("--durations=40", "--durations-min=2")
"""Each group's output ends with its slowest tests."""
ERROR_LINES_MAX, ERROR_WIDTH_MAX = 12, 400
LAST_LINE = re.compile(r"=+ (.*(?:passed|failed|error|skipped|deselected|no tests ran).*) in [0-9.]+s")


class Interrupted(Exception):
    """SIGINT or SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True)
class Group:
    """A command, and for pytest the tests that it is given."""

    name: str
    command: tuple[str, ...]
    paths: tuple[str, ...] = ()

    @property
    def log(self) -> Path:
        return LOGS / f"{self.name}.log"

    @property
    def cache(self) -> Path:
        """pytest's cache: this run's alone, so that it names the tests that failed now."""
        return LOGS / f"{self.name}.cache"

    def alone(self, test: str, seed: str | None = None) -> Group:
        """Runs one test of the group, by its id, also after OTTLA_TESTS_END.

        A chaos test takes the seed; hypothesis has kept its failures.
        """
        settings = ["--unset=OTTLA_TESTS_END", *([] if seed is None else [f"CHAOS_SEED={seed}"])]
        return Group(f"{self.name}.again", ("env", *settings, *self.command), (test,))

    def words(self) -> list[str]:
        if not self.paths:
            return list(self.command)
        return [*self.command, "-o", f"cache_dir={self.cache}", *self.paths]


def tests(name: str, *paths: str, only: str) -> Group:
    options = shlex.split(os.environ.get("PYTEST_OPTIONS", ""))
    return Group(name, (sys.executable, "-m", "pytest", *SLOWEST, "-m", only, *options), paths)


def integration_tests(*patterns: str) -> list[str]:
    found = (REPOSITORY / "tests" / "integration").glob("test_*.py")
    return sorted(
        str(path.relative_to(REPOSITORY)) for path in found if any(fnmatch(path.name, pattern) for pattern in patterns)
    )


def unit_tests_beside(folder: str) -> list[str]:
    paths = (REPOSITORY / "tests" / "unit").iterdir()
    return sorted(
        str(path.relative_to(REPOSITORY))
        for path in paths
        if (path.is_dir() and path.name not in (folder, "__pycache__")) or path.match("test_*.py")
    )


def groups_of(run: str) -> list[Group]:
    """In the order in which they begin: what takes longest begins first, so that all sides end at about the same time."""
    only = ONLY[run]
    on_spark = integration_tests(*ON_SPARK)
    paths = {
        "commands": integration_tests("test_*_cli*.py"),
        "spark": on_spark,
        "replay": [path for path in integration_tests("test_replay_*.py", "test_recorder*.py") if path not in on_spark],
        "failures": integration_tests(*FAILURES),
        "kafka": integration_tests(*BESIDE_KAFKA),
        "broker": ["tests/unit/broker"],
        "unit": [*unit_tests_beside("broker"), "tests/sim", "tests/fuzz"],
        "hostile": ["tests/hostile"],
        "clients": ["tests/clients"],
        "compose": ["tests/compose"],
    }
    taken = {path for of_group in paths.values() for path in of_group}
    paths["integration"] = [path for path in integration_tests("test_*.py") if path not in taken]
    groups = {name: tests(name, *of_group, only=only) for name, of_group in paths.items()}
    groups["checks"] = Group("checks", ("make", "--no-print-directory", "check"))
    if compiled.form()[0]:
        again = [f"tests/integration/test_{name}.py" for name in AGAIN]
        plain = tests("compiled", *again, only=f"not thorough or (kafka and {only})")
        groups["compiled"] = replace(plain, command=("env", "--unset", compiled.SWITCH, *plain.command))
    return [groups[name] for name in ORDER["quick" if run == "quick" else "thorough"] if name in groups]


class Runner:
    """What runs now, and what came of the rest."""

    def __init__(
        self,
        groups: Sequence[Group],
        form: str = "plain Python",
        needs: Mapping[str, str] | None = None,
        *,
        is_lenient: bool = False,
        side_by_side: int = 1,
    ) -> None:
        """`form` is that of the brokers, in words; `needs` are the versions of what the tests need; a lenient run repeats failures."""
        self._form = form
        self._needs = needs or {}
        self._is_lenient = is_lenient
        self._side_by_side = side_by_side
        self._groups = groups
        self._waiting = deque(groups)
        self._start = time.monotonic()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._results: list[tuple[Group, int, float]] = []
        self._repeated: dict[str, list[Repeated]] = {}
        self._why_not_repeated = ""
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_stopped = False

    def run(self) -> int:
        LOGS.mkdir(exist_ok=True)
        try:
            self._run_threads(*[self._run_groups] * self._side_by_side)
            if self._is_lenient:
                self._run_threads(self._repeat_failures)
        except Interrupted as interrupted:
            self._stop(interrupted.number)
            return 128 + interrupted.number
        return self._summarize()

    def _run_threads(self, *targets: Callable[[], None]) -> None:
        """Returns when all of them have ended; says now and then how far they are."""
        self._threads = [threading.Thread(target=target) for target in targets]
        for thread in self._threads:
            thread.start()
        said = time.monotonic()
        # Not `join`: an exception that a signal raises in it marks the thread as ended.
        while any(thread.is_alive() for thread in self._threads):
            time.sleep(POLL_S)
            if time.monotonic() > said + SILENCE_S_MAX:
                self._say_progress()
                said = time.monotonic()

    def _stop(self, number: int) -> None:
        """pytest cleans up after one SIGINT, and not after two; a terminal has sent it to all processes already."""
        self._is_stopped = True
        if number == signal.SIGINT:
            for thread in self._threads:
                thread.join(CLEANUP_S_MAX)
        with self._lock:
            for process in self._running.values():
                process.send_signal(signal.SIGINT)
        for thread in self._threads:
            thread.join()

    def _run_groups(self) -> None:
        while True:
            with self._lock:
                if self._is_stopped or not self._waiting:
                    return
                group = self._waiting.popleft()
            start = time.monotonic()
            try:
                exit_code = self._exit_code_of(group)
            except OSError as problem:
                print(f"{group.name} cannot be started: {problem}", flush=True)
                continue  # the summary says that it did not run
            with self._lock:
                self._results.append(
                    (group, 0 if exit_code == NO_TESTS_SELECTED else exit_code, time.monotonic() - start)
                )
                print(f"\n=== {group.name}: {shlex.join(group.words())} ===", flush=True)
                sys.stdout.buffer.write(group.log.read_bytes())
                sys.stdout.flush()

    def _exit_code_of(self, group: Group, seconds: float | None = None) -> int:
        """Runs the group, with its output in its log. Raises subprocess.TimeoutExpired after so many seconds."""
        shutil.rmtree(group.cache, ignore_errors=True)
        with group.log.open("wb") as log:
            with self._lock:
                process = subprocess.Popen(group.words(), cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT)
                self._running[group.name] = process
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                process.wait()
                raise
            finally:
                with self._lock:
                    del self._running[group.name]

    def _repeat_failures(self) -> None:
        """Repeats the tests that failed, unless the run has failures of another kind."""
        failed = [(group, exit_code) for group, exit_code, _ in self._results if exit_code]
        others = [group.name for group, code in failed if code != TESTS_FAILED or not is_only_by_tests(group)]
        if others:
            self._why_not_repeated = f"no test was repeated: {', '.join(others)} failed by more than tests"
            return
        end = time.monotonic() + SECONDS_MAX
        for group, _ in failed:
            for test in failed_tests(group.cache):
                seed = seed_of(test, group.log.read_text(errors="replace"))
                result = repeat(test, partial(self._passes, group.alone(test, seed)), end)
                print(f"\n{result}", flush=True)
                self._repeated.setdefault(group.name, []).append(result)
                if not result.is_flaky:
                    return

    def _passes(self, group: Group, seconds: float) -> bool | None:
        if self._is_stopped:
            return False
        try:
            is_over = self._exit_code_of(group, seconds) == 0
        except subprocess.TimeoutExpired:
            return None
        found = LAST_LINE.findall(group.log.read_text(errors="replace"))
        return is_over and bool(found) and found[-1].startswith("1 passed")  # and not skipped

    def _say_progress(self) -> None:
        with self._lock:
            parts = []
            for name in self._running:
                percents = re.findall(r"\[ *(\d+%)\]", (LOGS / f"{name}.log").read_text(errors="replace"))
                parts.append(f"{name} {percents[-1] if percents else '...'}")
            if parts:
                print(f"after {time.monotonic() - self._start:.0f} s: {', '.join(parts)}", flush=True)

    def _is_flaky(self, group: Group) -> bool:
        """Have all of its failures passed when they were repeated?"""
        results = self._repeated.get(group.name, [])
        return bool(results) and {each.test for each in results if each.is_flaky} == set(failed_tests(group.cache))

    def _summarize(self) -> int:
        """Prints what failed or was skipped, and a line for each group. -> the exit code"""
        ran = {group.name for group, _, _ in self._results}
        missing = [group.name for group in self._groups if group.name not in ran]
        has_failed = bool(missing) or any(code and not self._is_flaky(group) for group, code, _ in self._results)
        print("\n" + "=" * 100)
        for group, exit_code, seconds in self._results:
            lines = group.log.read_text(errors="replace").splitlines()
            counts = [found[1] for line in lines if (found := LAST_LINE.search(line))]
            verdict = "passed" if not exit_code else "flaky" if self._is_flaky(group) else f"FAILED ({exit_code})"
            print(f"{verdict:<12} {group.name:<12} {seconds:4.0f} s   {counts[-1] if counts else ''}")
            for line in lines:
                if SUMMARY_LINES.match(line):
                    print(f"    {line}")
        for name in missing:
            print(f"DID NOT RUN  {name}")
        print(f"processor time: {processor_s():.0f} s, on {os.cpu_count()} cores")
        print(f"brokers: {self._form}")
        for name, version in self._needs.items():
            print(f"{name}: {version}")
        for group, exit_code, _ in self._results:
            for line in errors_in(group.log.read_text(errors="replace")) if exit_code else ():
                print(f"{group.name}: {line}")
            self._say_what_repeating_showed(group)
        if self._why_not_repeated:
            print(self._why_not_repeated)
        verdict = "FAILED" if has_failed else "PASSED"
        print(f"{verdict} after {time.monotonic() - self._start:.0f} s; the whole output is in {LOGS.name}/")
        print("=" * 100, flush=True)
        return int(has_failed)

    def _say_what_repeating_showed(self, group: Group) -> None:
        for result in self._repeated.get(group.name, []):
            logs = [group.log, group.alone(result.test).log]
            seed = seed_of(result.test, group.log.read_text(errors="replace"))
            if result.is_flaky:
                logs = [LOGS / FLAKY_LOGS / f"{time.strftime('%Y-%m-%d-%H%M')}-{group.name}.log"]
                logs[0].parent.mkdir(exist_ok=True)
                shutil.copyfile(group.log, logs[0])
            where = ", ".join(os.path.relpath(log, REPOSITORY) for log in logs)
            print(f"{result}; {f'seed {seed}; ' if seed else ''}output: {where}")


def processor_s() -> float:
    """Of all processes that have ended, since this one started."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def errors_in(output: str) -> list[str]:
    """What pytest said about each failure: the name of the test, and the first lines of the error; and what was left running."""
    found, left = [], 0
    for line in output.splitlines():
        if re.match(r"_{3,} .+ _{3,}$|LEFT RUNNING ", line):
            found.append(line)
            left = ERROR_LINES_MAX
        elif line.startswith("E   ") and left:
            found.append(line[:ERROR_WIDTH_MAX])
            left -= 1
    return found


def is_only_by_tests(group: Group) -> bool:
    """pytest exits with TESTS_FAILED also when a test leaves a process running: that is no test to repeat."""
    return bool(failed_tests(group.cache)) and "\nLEFT RUNNING " not in group.log.read_text(errors="replace")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in ONLY:
        print(f"usage: python -m tests.run {'|'.join(ONLY)}", file=sys.stderr)
        return 2

    def interrupt(number: int, _: object) -> None:
        raise Interrupted(number)

    # A shell starts what runs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    is_compiled, compiled_form = compiled.form()
    groups = groups_of(arguments[0])
    is_thorough = arguments[0] != "quick"
    form = "plain Python"
    if is_thorough:
        form += (
            f"; in the group `compiled`: {compiled_form}" if is_compiled else "; SKIPPED the tests on compiled brokers"
        )
    os.environ[compiled.SWITCH] = "0"
    if arguments[0] == "release":
        os.environ.update(dict.fromkeys(EVERYTHING, "1"))
    # The tests start hundreds of processes. Without bytecode on the disk, each of them compiles every module that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"brokers: {form}", flush=True)
    LOGS.mkdir(exist_ok=True)
    for archive in ("tools.cluster.class_archive", "tools.replay.run.spark_archive"):  # hundreds of JVMs start
        subprocess.run([sys.executable, "-m", archive], cwd=REPOSITORY, check=False)
    is_lenient = is_thorough or REPEAT_FAILURES in os.environ
    return Runner(groups, form, versions(), is_lenient=is_lenient, side_by_side=SIDE_BY_SIDE[arguments[0]]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
