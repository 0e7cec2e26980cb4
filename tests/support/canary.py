"""A well-behaved client beside an attack, its longest wait, and what the attacks share."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from tests.support.invariants import eventually
from tests.support.wire import Wire

PAUSE_S = 0.01
TOPIC = "canary"


class Canary:
    """Produces small batches, one at a time, from a process of its own, so that the attacker's work is not its wait."""

    def __init__(self, port: int) -> None:
        with Wire(port) as wire:
            create_topic(wire, TOPIC, 1)
        context = multiprocessing.get_context("spawn")
        self._longest = context.Value("d", 0.0)
        self._began = context.Value("d", 0.0)
        self._count = context.Value("i", 0)
        self._process = context.Process(target=_sing, args=(port, self._longest, self._began, self._count), daemon=True)

    def __enter__(self) -> Canary:
        self._process.start()
        eventually(lambda: self.count > 0, "the canary sings")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        alive = self._process.is_alive()
        self.last_longest = self.longest_s
        self._process.kill()
        self._process.join()
        assert alive or error is not None, "the canary died"

    @property
    def count(self) -> int:
        return int(self._count.value)

    @property
    def longest_s(self) -> float:
        """The longest wait for an answer, including the one that is under way."""
        began = float(self._began.value)
        waiting = time.monotonic() - began if began and self._process.is_alive() else 0.0
        return max(float(self._longest.value), waiting)


def _sing(port: int, longest: Any, began: Any, count: Any) -> None:
    body = produce_body(TOPIC, [(0, build_batch([(b"key", bytes(100), (), 1000)]))])
    with Wire(port, timeout_s=60) as wire:
        while True:
            began.value = at = time.monotonic()
            answer = wire.call(ApiKey.PRODUCE, 9, body)
            assert answer.responses[0].partition_responses[0].error_code == 0
            longest.value = max(longest.value, time.monotonic() - at)
            began.value = 0.0
            count.value += 1
            time.sleep(PAUSE_S)


def create_topic(wire: Wire, name: str, partitions: int) -> None:
    """Makes a topic with one replica, unless it exists. Returns when all partitions have leaders."""
    row = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    wire.call(ApiKey.CREATE_TOPICS, 5, {"topics": [row], "timeout": 10_000, "validate_only": False})

    def is_led() -> bool:
        asked = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        topic = wire.call(ApiKey.METADATA, 9, asked).topics[0]
        return (
            topic.error_code == 0
            and len(topic.partitions) == partitions
            and not any(partition.error_code for partition in topic.partitions)
        )

    eventually(is_led, f"{name} has leaders")


def produce_body(topic: str, partitions: Sequence[tuple[int, bytes]], acks: int = 1) -> dict[str, Any]:
    rows = [{"index": number, "records": batch} for number, batch in partitions]
    data = [{"name": topic, "partition_data": rows}]
    return {"transactional_id": None, "acks": acks, "timeout": 5000, "topic_data": data}


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1024**2
