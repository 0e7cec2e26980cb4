"""A well-behaved client beside an attack, and the memory that the brokers take meanwhile."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.invariants import eventually
from tests.support.topics import new_topic
from tools.cluster.local_cluster import LocalCluster

SAMPLE_S = 0.05


class CanaryProcess:
    """`tests.hostile.canary` in a process of its own."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        brokers = ",".join(f"{broker}={cluster.address(broker)}" for broker in cluster.broker_ids)
        command = [sys.executable, "-m", "tests.hostile.canary", "--topic", topic, "--brokers", brokers]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == {"ready": True}

    def mark(self) -> dict[str, Any]:
        """What was seen since the last mark."""
        assert self._process.stdin is not None
        self._process.stdin.write("mark\n")
        self._process.stdin.flush()
        return self._line()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the canary ended"
        row: dict[str, Any] = json.loads(line)
        return row


class BrokerMemory:
    """Resident MiB of the brokers: the largest one's, sampled in a thread."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._ended = threading.Event()
        self.peak = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def now(self) -> float:
        found = [0.0]
        for broker in self._cluster.broker_ids:
            with contextlib.suppress(OSError, StopIteration):
                status = Path(f"/proc/{self._cluster.pid(broker)}/status").read_text()
                found.append(
                    int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024
                )
        return max(found)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.peak = max(self.peak, self.now())


@contextlib.contextmanager
def canary_beside(cluster: LocalCluster, wait_max_s: float) -> Iterator[None]:
    """During the block a client of all brokers is served, no request of it waits for longer, and no broker ends."""
    pids = [cluster.pid(broker) for broker in cluster.broker_ids]
    topic = new_topic(cluster.bootstrap_servers, assignment=[[broker] for broker in cluster.broker_ids])
    canary = CanaryProcess(cluster, topic)
    try:
        eventually(lambda: canary.mark()["answers"] > 0, "the canary is served")
        yield
        row = canary.mark()
        eventually(lambda: canary.mark()["answers"] > 3, "the canary is still served")
    finally:
        canary.close()
    assert [cluster.pid(broker) for broker in cluster.broker_ids] == pids
    assert (row["faults"], row["tasks_ended"]) == ([], 0)
    assert max(row["longest_s"].values(), default=0.0) < wait_max_s, row
