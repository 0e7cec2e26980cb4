"""Members of a consumer group as processes (`group_chaos_member`): started, killed, paused, told to leave."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.group_journals import JournalFile
from tools.cluster.local_cluster import LocalCluster
from tools.faults.cluster import State

CLOSE_TIMEOUT_S = 60.0


class MemberProcess:
    """One of them, a victim for faults. What it writes to its standard error is beside its journal."""

    def __init__(self, group: MemberProcesses, assignor: str, command: Sequence[str], journal: Path) -> None:
        self._group = group
        self.assignor = assignor
        self.name = journal.stem
        self.journal = JournalFile(journal)
        with journal.with_suffix(".log").open("wb") as log:
            # It ends when this end of its standard input does.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def last_commit(self) -> float:
        """When the last one was acknowledged; 0: never."""
        self.journal.read()
        return max((line["at"] for line in self.journal.lines[-20:] if line["what"] == "committed"), default=0.0)

    def state(self) -> State:
        if self._process.poll() is not None:
            return State.ENDED
        status = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return State.PAUSED if status in "Tt" else State.RUNNING

    def kill(self) -> None:
        """The member ends without leaving the group."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """The member commits, leaves the group, and ends."""
        self.ask_to_close()
        self.wait_closed()

    def ask_to_close(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait_closed(self) -> None:
        code = self._process.wait(CLOSE_TIMEOUT_S)
        assert code == 0, f"{self.name} ended with {code}, see {self.journal.path.with_suffix('.log')}"

    def start(self) -> None:
        """Starts another member in its place."""
        self._group.running.remove(self)
        self._group.add(self.assignor)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


class MemberProcesses:
    """A group. `all`: also those that ended."""

    def __init__(
        self, cluster: LocalCluster, group: str, topic: str, assignors: Sequence[str], *, is_tuned: bool
    ) -> None:
        self.group = group
        self.assignors = set(assignors)
        self.all: list[MemberProcess] = []
        self.running: list[MemberProcess] = []
        self._cluster = cluster
        self._topic = topic
        self._is_tuned = is_tuned
        for assignor in assignors:
            self.add(assignor)

    def __enter__(self) -> MemberProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.running:
            member.kill()

    def add(self, assignor: str) -> None:
        path = self._cluster.directory / f"{self.group}-{len(self.all) + 1}.journal"
        member = MemberProcess(self, assignor, self._command(assignor, path), path)
        self.all.append(member)
        self.running.append(member)

    def _command(self, assignor: str, journal: Path) -> list[str]:
        command = [sys.executable, "-m", "tests.support.group_chaos_member", assignor, self._cluster.bootstrap_servers]
        return [*command, self.group, self._topic, str(journal), *(["tuned"] if self._is_tuned else [])]

    def close(self) -> None:
        """All members leave. Their journals have what they committed."""
        members, self.running = self.running, []
        for member in members:
            member.ask_to_close()
        for member in members:
            member.wait_closed()
