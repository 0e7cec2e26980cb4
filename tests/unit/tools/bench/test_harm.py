"""The `--fault-command` of a real Kafka: one process harms a broker that another one has started, and owns."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from pathlib import Path

from tools.bench.real_kafka.harm import harmable
from tools.bench.real_kafka.running import RealKafka, Server


def test_a_broker_is_killed_and_started_again(tmp_path: Path) -> None:
    server = Server("broker-0", tmp_path, ["sleep", "600"])
    server.start()
    kafka = RealKafka({0: "127.0.0.1:9092"}, {0: server}, "")
    with contextlib.ExitStack() as stack:
        stack.callback(server.end)
        command = stack.enter_context(harmable(kafka, tmp_path))

        def harm(*words: str) -> tuple[int, str]:
            called = [*shlex.split(command), *words, "127.0.0.1", "9092"]
            done = subprocess.run(called, capture_output=True, text=True, timeout=60, check=False)
            return done.returncode, done.stderr.strip()

        before = kafka.pids
        assert harm("kill", "0") == (0, "")
        assert server.process is not None
        assert server.process.poll() == -9
        assert harm("start", "0") == (0, "")
        assert kafka.pids != before
        assert server.process.poll() is None
        assert harm("pause", "0") == harm("resume", "0") == harm("stop", "0") == (0, "")
        assert server.process.poll() == -15
        assert harm("cut", "0") == (1, "cut is not possible here: only kill, stop, start, pause and resume are")
        assert harm("kill", "7") == (1, "this Kafka has no broker 7")
    assert harm("kill", "0")[0] == 1, "nobody listens any more"
