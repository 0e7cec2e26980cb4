"""The process that forks brokers, with one that has imported a real broker."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.invariants import eventually
from tools.cluster.forks import CannotFork, Forks
from tools.cluster.forks import forks as forks_of_owner
from tools.cluster.process_handle import ProcessHandle

REPOSITORY = Path(__file__).resolve().parents[4]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """The tests own their servers: with `close`, the brokers end, too."""
    process = Forks("server.properties", "server.log", ENVIRONMENT)
    yield process
    process.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a broker that waits for a ZooKeeper that is not there. Its name is not UTF-8."""
    path = tmp_path / os.fsdecode(b"broker-\xff")
    path.mkdir()
    (path / "server.properties").write_text(
        f"broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path / 'data'}\nzookeeper.connect=127.0.0.1:1\n"
    )
    return path


def is_over(pid: int) -> bool:
    try:
        return ProcessHandle(pid).is_over() is True
    except ProcessLookupError:
        return True


def test_what_a_process_inherits(forks: Forks, directory: Path) -> None:
    """The environment is its own, and its log says what was wrong there, as that of a broker that was started alone."""
    pid = forks.fork(directory, {**ENVIRONMENT, "KAFKA_NUM_PARTITIONS": "many"})
    eventually(lambda: is_over(pid), "it has ended")
    (line,) = (directory / "server.log").read_text().splitlines()
    assert line.startswith("ottla broker: environment KAFKA_NUM_PARTITIONS: ")


def test_the_others_do_not_notice_that_one_cannot_start(forks: Forks, directory: Path) -> None:
    """Nor a SIGTERM, which may be for all processes of a service."""
    first = forks.fork(directory, ENVIRONMENT)
    os.kill(forks._process.pid, signal.SIGTERM)
    with pytest.raises(CannotFork, match="nowhere: No such file or directory"):
        forks.fork(directory / "nowhere", ENVIRONMENT)
    other = directory / "other"
    (other / "server.log").mkdir(parents=True)
    with pytest.raises(CannotFork, match=r"server\.log: Is a directory"):
        forks.fork(other, ENVIRONMENT)
    assert not is_over(first)
    os.kill(first, signal.SIGTERM)
    eventually(lambda: is_over(first), "it has ended")
    second = forks.fork(directory, ENVIRONMENT)
    assert second != first
    os.kill(second, signal.SIGKILL)


class Interrupted(BaseException):
    """As for a Ctrl-C."""


def test_an_interrupt_before_the_answer(forks: Forks, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while the environment, which is larger than a pipe, is sent. The broker is forked, and ends at once."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    def interrupt_when_a_part_is_sent() -> None:
        eventually(lambda: fcntl.ioctl(forks._requests, termios.FIONREAD, bytes(4)) != bytes(4), "a part is sent")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    killed: list[int] = []
    monkeypatch.setattr("tools.cluster.forks._kill", lambda forked: killed.append(forked.result()))
    before = signal.signal(signal.SIGUSR1, interrupt)
    os.kill(forks._process.pid, signal.SIGSTOP)
    interrupting = threading.Thread(target=interrupt_when_a_part_is_sent)
    interrupting.start()
    with pytest.raises(Interrupted):
        forks.fork(directory, {**ENVIRONMENT, "LARGE": "x" * 1_000_000})
    interrupting.join()
    signal.signal(signal.SIGUSR1, before)
    os.kill(forks._process.pid, signal.SIGCONT)
    pid = forks.fork(directory, ENVIRONMENT)
    assert Path(f"/proc/{pid}/cwd").resolve() == directory
    assert len(killed) == 1
    assert killed != [pid]
    for each in (pid, *killed):
        os.kill(each, signal.SIGKILL)


def test_a_fork_that_fails_ends_no_other_broker(directory: Path, tmp_path: Path) -> None:
    """As for the limit of processes, which root does not have."""
    (tmp_path / "sitecustomize.py").write_text(
        "import errno, itertools, os\n"
        "forked, fork = itertools.count(1), os.fork\n"
        "def limited():\n"
        "    if next(forked) == 2:\n"
        "        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        "    return fork()\n"
        "os.fork = limited\n"
    )
    process = Forks("server.properties", "server.log", {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"})
    first = process.fork(directory, ENVIRONMENT)
    with pytest.raises(CannotFork, match=r"^cannot fork: Resource temporarily unavailable$"):
        process.fork(directory, ENVIRONMENT)
    assert process.fork(directory, ENVIRONMENT) != first
    assert not is_over(first)
    process.close()


def test_forks_end_with_the_process(directory: Path) -> None:
    process = Forks("server.properties", "server.log", ENVIRONMENT)
    pid = process.fork(directory, ENVIRONMENT)
    process.close()
    eventually(lambda: is_over(pid), "it has ended")
    assert not process.is_running()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise SystemExit('cannot import')", "^cannot import$"),
        ("raise SystemExit('a line\\n' * 100_000 + 'cannot import')", "^cannot import$"),
        ("", "has ended, and printed nothing"),
        ("import signal; signal.pause()", r"\(pid \d+\) did not answer within 0.2 s"),
    ],
)
def test_why_nothing_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str) -> None:
    monkeypatch.setattr("tools.cluster.forks.TIMEOUT_S", 0.2 if "pause" in code else 20.0)
    (tmp_path / "broker.py").write_text(code)
    process = Forks("server.properties", "server.log", {**os.environ, "PYTHONPATH": str(tmp_path)})
    with pytest.raises(CannotFork, match=says):
        process.fork(tmp_path, ENVIRONMENT)
    assert process.is_usable == ("pause" not in code)
    process.close()


def test_without_a_thread(forks: Forks, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the limit of processes."""

    def refuse(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr("threading._start_new_thread", refuse)
        with pytest.raises(CannotFork, match=r"^can't start new thread$"):
            forks.fork(directory, ENVIRONMENT)
        with pytest.raises(CannotFork, match=r"^cannot start the process that forks brokers: can't start new thread$"):
            Forks("server.properties", "server.log", ENVIRONMENT)
    os.kill(forks.fork(directory, ENVIRONMENT), signal.SIGKILL)


def test_when_an_owner_needs_another_process(tmp_path: Path) -> None:
    """If it has ended, does not answer, or has other limits or variables than a broker would inherit now."""
    (tmp_path / "broker.py").write_text("import sys; sys.stdin.read()")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found: list[Forks] = []

    def is_another(environment: dict[str, str] = environment) -> bool:
        with forks_of_owner("server.properties", "server.log", environment) as process:
            found.append(process)
        return process not in found[:-1]

    assert is_another()
    assert not is_another()
    assert is_another({**environment, "LANG": "C"})
    assert not is_another({**environment, "HOME": "/nowhere"})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    assert is_another()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not is_another()
    found[0].is_usable = False
    assert is_another()
    assert found[0].is_running(), "its brokers would end with it"
    found[-1].close()
    assert is_another()
    for process in set(found):
        process.close()
