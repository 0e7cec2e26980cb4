"""Server processes: found again by another object, never mistaken for another program, always stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tests.support.invariants import eventually
from tools import private_files
from tools.cluster.process_handle import ProcessHandle
from tools.cluster.processes import ClusterError, ServerProcess, stop_all

WAIT = "import signal, sys; print('ready', flush=True); signal.pause()"
BUSY = "print('ready', flush=True)\nwhile True: pass"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)\nwhile True: signal.pause()"
TIMEOUT_S = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    config = tmp_path / "server.conf"
    config.write_text("")
    process = ServerProcess("server", tmp_path, config, "marker")
    yield process
    process.kill()


def start(server: ServerProcess, code: str) -> int:
    pid = server.start([sys.executable, "-c", code, "marker", str(server.config_file)], os.environ)
    eventually(lambda: server.last_words() == "ready", "the server is ready", TIMEOUT_S)
    return pid


def another(server: ServerProcess) -> ServerProcess:
    """The same server as another command finds it."""
    return ServerProcess(server.name, server.directory, server.config_file, server.marker)


def test_an_ended_process_is_noticed_after_a_signal_interrupted_poll(server: ServerProcess) -> None:
    """If a signal handler raises inside `Popen.poll`, the lock of `poll` stays taken."""
    start(server, WAIT)
    assert server._child is not None
    server._child._waitpid_lock.acquire()  # type: ignore[attr-defined]
    server.kill()
    assert server.pid() is None


def test_a_process_is_found_by_pid_file_and_by_command_line(server: ServerProcess) -> None:
    assert server.pid() is None
    pid = start(server, WAIT)
    assert server.pid() == pid
    assert server.pid_file.read_text() == f"{pid}\n"
    assert another(server).pid() == pid
    server.pid_file.unlink()
    assert another(server).pid() == pid
    server.kill()
    assert server.pid() is None
    assert another(server).pid() is None
    assert not server.pid_file.exists()


@pytest.mark.parametrize(
    "text", [str(os.getpid()), "rubbish", "0", "-1", "1", str(2**70), "1_0", "", "\u0661"], ids=ascii
)
def test_a_pid_file_that_names_no_such_server(server: ServerProcess, text: str) -> None:
    server.pid_file.write_text(text)
    assert server.pid() is None
    assert not server.send(signal.SIGKILL)


def test_a_program_that_only_names_the_config_file_is_not_the_server(server: ServerProcess) -> None:
    editor = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", str(server.config_file)])
    try:
        server.pid_file.write_text(f"{editor.pid}\n")
        assert server.pid() is None
    finally:
        editor.kill()
        editor.wait()


def test_pause_and_stop(server: ServerProcess) -> None:
    start(server, WAIT)
    server.send(signal.SIGSTOP)
    assert server.is_paused()
    assert server.pid() is not None
    assert stop_all([server], TIMEOUT_S) == [], "a paused one is woken to end"
    assert server.pid() is None
    assert not server.is_paused()


def test_an_undo_right_after_a_pause_finds_a_paused_process(server: ServerProcess) -> None:
    """SIGSTOP takes effect a moment after it is sent, while the process runs on another processor."""
    start(server, BUSY)
    for _ in range(50):
        server.send(signal.SIGSTOP)
        assert server.is_paused()
        server.send(signal.SIGCONT)


def test_a_server_that_does_not_stop_is_killed_and_named(server: ServerProcess) -> None:
    start(server, STUBBORN)
    assert stop_all([server], 0.2) == [server]
    assert server.pid() is None


def test_output_is_kept_over_restarts(server: ServerProcess) -> None:
    start(server, WAIT)
    server.kill()
    server.start([sys.executable, "-c", "print('said\\n\\n')"], os.environ)
    assert server.wait_gone(TIMEOUT_S)
    assert server.last_words() == "said"
    assert server.log_file.read_text().startswith("ready\n")


def test_signals_reach_only_the_process_of_the_handle() -> None:
    """The handle is taken before the check. An ended process gets no signal, and neither does the next process with its pid."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    handle = ProcessHandle(child.pid)
    child.wait()
    assert handle.is_over() in (True, None)
    assert not handle.send(signal.SIGKILL)


def test_without_pidfd_the_pid_is_used(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    pid = start(server, WAIT)
    assert another(server).pid() == pid
    another(server).kill()
    assert server.pid() is None


def test_files_are_not_written_through_links(server: ServerProcess, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    server.pid_file.symlink_to(target)
    (tmp_path / "pid.tmp").symlink_to(target)
    start(server, "import os; os.umask(os.umask(0)); print(open('made', 'w')); " + WAIT)
    assert target.read_text() == "mine"
    assert (tmp_path / "made").stat().st_mode & 0o027 == 0
    assert server.log_file.stat().st_mode & 0o007 == 0
    server.kill()
    server.log_file.unlink()
    server.log_file.symlink_to(target)
    with pytest.raises(ClusterError, match="not a regular file"):
        server.start([sys.executable, "-c", "print('x')"], os.environ)
    assert target.read_text() == "mine"


def test_the_last_words_of_a_java_program_are_its_exception(server: ServerProcess) -> None:
    server.log_file.write_text(
        "2026-11-28T11:41:07,414 ERROR Invalid config, exiting abnormally (QuorumPeerMain)\n"
        "org.apache.zookeeper.server.quorum.QuorumPeerConfig$ConfigException: Error processing ./zoo.cfg\n"
        "\tat org.apache.zookeeper.server.quorum.QuorumPeerConfig.parse(QuorumPeerConfig.java:198)\n"
        'Caused by: java.lang.NumberFormatException: For input string: "x"\n'
        "\tat java.base/java.lang.Integer.parseInt(Integer.java:668)\n"
        "\t... 2 more\n"
        "Invalid config, exiting abnormally\n"
        "2026-11-28T11:41:07,426 ERROR Exiting JVM with code 2 (ServiceUtils)\n"
    )
    assert server.last_words() == 'Caused by: java.lang.NumberFormatException: For input string: "x"'


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_log_that_is_no_file_is_refused_and_left_out(server: ServerProcess, make: Callable[[Path], None]) -> None:
    make(server.log_file)
    with pytest.raises(
        ClusterError, match=r"server cannot write its log /.*/server.log \(not a regular file\): move it away"
    ):
        server.open_log()
    assert server.last_words() == ""


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, *_: object, **__: object) -> TextIO:
        os.close(fd)
        return open("/dev/full", "w")

    monkeypatch.setattr(private_files, "open", full, raising=False)
    with pytest.raises(OSError, match=r"No space left on device: '.*/pid'"):
        private_files.write_anew(tmp_path / "pid", "1\n")
    assert list(tmp_path.iterdir()) == []
