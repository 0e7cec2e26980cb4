"""The demo's fault: SIGKILL to a partition's leader during a replay, and its restart later."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from confluent_kafka import KafkaException

from tools.replay.plan import Fault, OutputDirectory

KILL_AT = 0.45
RETURN_AT = 0.70
"""Fractions of the replay's duration: in the default week, a busy morning and an evening later."""


class Cluster(Protocol):
    """The part of `tools.cluster.local_cluster.LocalCluster` that is needed here."""

    def kill(self, broker_id: int) -> object: ...

    def start_broker(self, broker_id: int) -> object: ...


class LeaderKill:
    """Kills the leader of one partition after `KILL_AT` of the duration, and restarts it."""

    def __init__(
        self,
        cluster: Cluster,
        leaders: Callable[[], Mapping[int, int]],
        partition: int,
        duration_s: float,
        output: OutputDirectory,
        say: Callable[[str], None],
        also: Callable[[int], str] = lambda _: "",
    ) -> None:
        """`leaders` returns each partition's current leader. Faults go to `output`, text to `say`; `also` returns what else
        to say about the killed broker."""
        self._cluster = cluster
        self._leaders = leaders
        self._partition = partition
        self._duration_s = duration_s
        self._output = output
        self._say = say
        self._also = also
        self.faults: list[Fault] = []

    def step(self, elapsed_s: float) -> None:
        """Carries out the steps that are due. Call it often."""
        if not self.faults and elapsed_s >= KILL_AT * self._duration_s:
            self._kill()
        elif len(self.faults) == 1 and elapsed_s >= RETURN_AT * self._duration_s:
            self._bring_back()

    def _kill(self) -> None:
        try:
            leaders = self._leaders()
        except KafkaException:
            return  # asked again on the next step
        broker = leaders.get(self._partition, -1)
        if broker < 0:
            return
        led = sorted(partition for partition, leader in leaders.items() if leader == broker)
        self._note(Fault("kill", broker, time.time(), led))
        self._cluster.kill(broker)
        self._say(
            f"SIGKILL to broker {broker}, the leader of partitions {', '.join(map(str, led))}{self._also(broker)}"
        )

    def _bring_back(self) -> None:
        broker = self.faults[0].broker
        self._note(Fault("return", broker, time.time(), []))
        self._say(f"broker {broker} restarts")
        self._cluster.start_broker(broker)

    def _note(self, fault: Fault) -> None:
        self.faults.append(fault)
        self._output.write_faults(self.faults)
