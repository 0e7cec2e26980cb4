"""Kafka's own command line tools."""

from __future__ import annotations

import select
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.real_kafka import PROGRAMS, java_command

TOOL_TIMEOUT_S = 60
SERVER = PROGRAMS / "KafkaToolServer.java"
SERVED = frozenset(
    {
        "kafka.admin.ConfigCommand",
        "kafka.tools.DumpLogSegments",
        "org.apache.kafka.tools.LeaderElectionCommand",
        "org.apache.kafka.tools.TopicCommand",
        "org.apache.kafka.tools.TransactionsCommand",
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    }
)
"""Tools that leave nothing behind in their JVM: they share one. The others work until they are stopped, or at its end."""
LOG_COMPLAINTS = (
    "Mismatches",
    "mismatch",
    "isvalid: false",
    "Non-consecutive",
    "misordered",
    "out of order",
    "invalid bytes",
    "Exception",
    "corrupt",
    "could not be read",
)
"""What DumpLogSegments says of a log or an index in which something is wrong."""


class KafkaTools:
    """Classes of Kafka's distribution, run to their end."""

    def run(self, *arguments: str, expected_exit_code: int = 0) -> str:
        """Both outputs; fails unless the exit code is the expected one."""
        if arguments[0] in SERVED:
            exit_code, output = tool_server().run(arguments)
        else:
            done = subprocess.run(
                java_command(*arguments), capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
            )
            exit_code, output = done.returncode, done.stdout + done.stderr
        assert exit_code == expected_exit_code, output
        return output

    def dump(self, files: Sequence[Path], *options: str, allowed: Sequence[str] = ()) -> str:
        """DumpLogSegments without a complaint but those with a word of `allowed`."""
        output = self.run("kafka.tools.DumpLogSegments", *options, "--files", ",".join(map(str, files)))
        words = [word for word in LOG_COMPLAINTS if word not in allowed]
        complaints = [line for line in output.splitlines() if any(word in line for word in words)]
        assert complaints == []
        return output

    def topics(self, bootstrap_servers: str, *arguments: str, expected_exit_code: int = 0) -> str:
        return self._on("org.apache.kafka.tools.TopicCommand", bootstrap_servers, arguments, expected_exit_code)

    def configs(self, bootstrap_servers: str, *arguments: str, expected_exit_code: int = 0) -> str:
        return self._on("kafka.admin.ConfigCommand", bootstrap_servers, arguments, expected_exit_code)

    def groups(self, bootstrap_servers: str, *arguments: str, expected_exit_code: int = 0) -> str:
        command = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        patient = (*arguments, "--timeout", "60000")  # its 5 s are too few for a JVM on a busy machine
        return self._on(command, bootstrap_servers, patient, expected_exit_code)

    def elections(self, bootstrap_servers: str, *arguments: str) -> str:
        return self._on("org.apache.kafka.tools.LeaderElectionCommand", bootstrap_servers, arguments)

    def reassign(self, bootstrap_servers: str, *arguments: str) -> str:
        return self._on("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", bootstrap_servers, arguments)

    def _on(self, command: str, bootstrap_servers: str, arguments: Sequence[str], expected_exit_code: int = 0) -> str:
        where = ("--bootstrap-server", bootstrap_servers)
        return self.run(command, *where, *arguments, expected_exit_code=expected_exit_code)


class ToolServer:
    """One JVM that runs tools one after another; it ends with this process, whose pipe it reads."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            java_command(str(SERVER)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._lock = threading.Lock()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def run(self, words: Sequence[str]) -> tuple[int, str]:
        """(exit code, both outputs). TimeoutError, and the end of the JVM, for a tool that hangs."""
        encoded = [word.encode() for word in words]
        question = struct.pack(">i", len(words)) + b"".join(struct.pack(">H", len(word)) + word for word in encoded)
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(question)
            deadline = time.monotonic() + TOOL_TIMEOUT_S
            exit_code, length = struct.unpack(">ii", self._read(8, deadline))
            return exit_code, self._read(length, deadline).decode()

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        found = bytearray()
        while len(found) < count:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            part = self._process.stdout.read(count - len(found)) if ready else b""
            if not part:
                self._process.kill()
                raise TimeoutError(f"the JVM of Kafka's tools said nothing within {TOOL_TIMEOUT_S} s, or has ended")
            found += part
        return bytes(found)


def tool_server() -> ToolServer:
    """The session's; another one after one that has ended."""
    if not SERVERS or SERVERS[-1].ended:
        SERVERS.append(ToolServer())
    return SERVERS[-1]


SERVERS: list[ToolServer] = []
