"""Kafka's own command line tools, run by the workplace's `peer-kafka`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

TOOL_TIMEOUT_S = 60
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

    def __init__(self, peer_kafka: Path) -> None:
        self.command = [str(peer_kafka), "run"]
        self.environment = os.environ | {"KAFKA_HEAP": "-Xmx256m"}

    def run(self, *arguments: str, expected_exit_code: int = 0) -> str:
        """Both outputs; fails unless the exit code is the expected one."""
        done = subprocess.run(
            [*self.command, *arguments],
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            env=self.environment,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == expected_exit_code, output
        return output

    def dump(self, files: Sequence[Path], *options: str, allowed: Sequence[str] = ()) -> str:
        """DumpLogSegments without a complaint but those with a word of `allowed`."""
        output = self.run("kafka.tools.DumpLogSegments", *options, "--files", ",".join(map(str, files)))
        words = [word for word in LOG_COMPLAINTS if word not in allowed]
        complaints = [line for line in output.splitlines() if any(word in line for word in words)]
        assert complaints == []
        return output

    def topics(self, bootstrap_servers: str, *arguments: str, expected_exit_code: int = 0) -> str:
        return self.run(
            "org.apache.kafka.tools.TopicCommand",
            "--bootstrap-server",
            bootstrap_servers,
            *arguments,
            expected_exit_code=expected_exit_code,
        )

    def configs(self, bootstrap_servers: str, *arguments: str, expected_exit_code: int = 0) -> str:
        return self.run(
            "kafka.admin.ConfigCommand",
            "--bootstrap-server",
            bootstrap_servers,
            *arguments,
            expected_exit_code=expected_exit_code,
        )

    def elections(self, bootstrap_servers: str, *arguments: str) -> str:
        return self.run(
            "org.apache.kafka.tools.LeaderElectionCommand", "--bootstrap-server", bootstrap_servers, *arguments
        )

    def reassign(self, bootstrap_servers: str, *arguments: str) -> str:
        return self.run(
            "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
            "--bootstrap-server",
            bootstrap_servers,
            *arguments,
        )
