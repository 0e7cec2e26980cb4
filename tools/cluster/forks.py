"""The process that forks brokers (`broker/process/together.py`), as the one that asks for them sees it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.cluster import ownership
from tools.failures import ExpectedError
from tools.private_files import server_umask

TIMEOUT_S = 60.0
"""For the imports of a broker, or one fork."""
LAST_FORK_S = 5.0
"""For a broker that was just forked to open its log, when the process ends."""
AT_START = ("LD_", "PYTHON", "MALLOC_", "GLIBC_", "OTTLA_COMPILED", "LANG", "LC_", "TZ")
"""How the names of variables begin that take effect before a process is forked."""
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class CannotFork(ExpectedError):
    """No broker was forked; the message says why."""


class Forks:
    """One such process."""

    def __init__(self, config: str, log: str, environment: Mapping[str, str]) -> None:
        """`config`, `log`: names of files in the directory of each broker. Raises CannotFork."""
        how = "owned" if ownership.is_owner() else "detached"
        try:
            self._process = ownership.start(
                [sys.executable, "-m", "broker", "--together", how, "--config", config, "--log-file", log],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=os.sep,
                env=dict(environment),
                start_new_session=True,
            )
            self._last_words: deque[bytes] = deque(maxlen=1)
            self._listener = threading.Thread(target=self._listen, name="words of the forking process", daemon=True)
            self._listener.start()
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread, for the limit of processes
            raise CannotFork(f"cannot start the process that forks brokers: {error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._is_asked = threading.Lock()
        self.is_usable = True
        """False if it has not answered in time. Nothing is sent to it then, but brokers of it may run."""

    def is_running(self) -> bool:
        return self._listener.is_alive()

    def fork(self, directory: Path, environment: Mapping[str, str]) -> int:
        """A broker in this directory -> its pid. Raises CannotFork."""
        request = {"directory": str(directory), "environment": dict(environment), "umask": server_umask()}
        line = json.dumps(request).encode() + b"\n"
        forked: Future[int] = Future()
        try:
            # In a thread, because an interrupt may come at any moment, and must not tear a request, or keep an answer from being read.
            threading.Thread(target=self._ask, args=(line, forked), name="fork of a broker", daemon=True).start()
            return forked.result(TIMEOUT_S)
        except CannotFork:
            raise
        except RuntimeError as error:  # no thread, for the limit of processes
            raise CannotFork(str(error)) from None
        except BaseException as reason:
            forked.add_done_callback(_kill)  # nobody would know of that broker
            if not isinstance(reason, TimeoutError):
                raise
        self.is_usable = False
        raise CannotFork(
            f"the process that forks brokers (pid {self._process.pid}) did not answer within {TIMEOUT_S:g} s: "
            "the machine is very busy, or a disk does not answer"
        )

    def _ask(self, line: bytes, forked: Future[int]) -> None:
        with self._is_asked:
            try:
                forked.set_result(self._answer_to(line))
            except CannotFork as problem:
                forked.set_exception(problem)

    def _answer_to(self, line: bytes) -> int:
        with suppress(BrokenPipeError):  # its last words say why
            while line:
                line = line[os.write(self._requests.fileno(), line) :]
        answer = self._answers.readline()
        if not answer:
            self._listener.join(LAST_FORK_S)
            words = [line.decode(errors="replace").strip() for line in self._last_words]
            raise CannotFork(words[-1] if words else "the process that forks brokers has ended, and printed nothing")
        said = json.loads(answer)
        if not isinstance(said, int):
            raise CannotFork(said)
        return said

    def _listen(self) -> None:
        """What it prints must be read, or it waits."""
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            self._last_words.extend(line for line in stream if line.strip())

    def close(self) -> None:
        """Ends it. Its forks go on, unless they are owned, or nobody got their pid."""
        self._process.kill()
        self._process.wait()
        self._listener.join(LAST_FORK_S)
        if self._is_asked.acquire(timeout=LAST_FORK_S):
            self._requests.close()
            self._answers.close()
            self._is_asked.release()


def _kill(forked: Future[int]) -> None:
    if forked.exception() is None:
        with suppress(ProcessLookupError):
            os.kill(forked.result(), signal.SIGKILL)


_owned: dict[tuple[object, ...], Forks] = {}
_unusable: list[Forks] = []
"""They still run: with them, their brokers would end."""
_locks: dict[int, threading.Lock] = {}


def _lock() -> threading.Lock:
    """One for each process: a fork of this process may copy one that is taken."""
    return _locks.setdefault(os.getpid(), threading.Lock())


@contextmanager
def forks(config: str, log: str, environment: Mapping[str, str]) -> Iterator[Forks]:
    """An owner of brokers keeps the process for all that it starts; otherwise it ends after these. Raises CannotFork."""
    if not ownership.is_owner():
        detached = Forks(config, log, environment)
        try:
            yield detached
        finally:
            detached.close()
        return
    at_start = frozenset((name, value) for name, value in environment.items() if name.startswith(AT_START))
    inherited = (os.getresuid(), os.getresgid(), *map(resource.getrlimit, LIMITS))
    key = (os.getpid(), config, log, at_start, inherited)
    with _lock():
        found = _owned.get(key)
        if found is not None and not found.is_running():
            found.close()
            found = None
        elif found is not None and not found.is_usable:
            _unusable.append(found)
            found = None
        if found is None:
            found = _owned[key] = Forks(config, log, environment)
    yield found


def end_owned() -> None:
    """Ends the kept processes, and with them what they forked: the next start imports again, as that of a user does."""
    with _lock():
        while _owned:
            _owned.popitem()[1].close()
