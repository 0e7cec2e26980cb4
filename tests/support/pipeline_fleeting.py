"""The load of the fleeting input: its topic is deleted and made again while it runs."""

from __future__ import annotations

import itertools
import threading

from confluent_kafka import KafkaException, Producer

from tests.support.pipeline_deletions import Remade
from tests.support.pipeline_judge import FLEETING_MARK
from tools.faults.reporting_clients import PROMPT

GIVEN_UP_MS = 5_000
FLUSH_S = 10.0


def fleeting_mark(made: Remade) -> bytes:
    """How the records begin that are written while the topic is this one, and perhaps for a moment after it was made again."""
    return FLEETING_MARK + b"%d:" % made.times


class FleetingLoad:
    """Writes numbered records from the start of its `with` to its end. Failures mean nothing, and records may be there twice: after
    messages that timed out, librdkafka sends others again in a new epoch."""

    def __init__(self, servers: str, made: Remade, records_per_s: float) -> None:
        self._made = made
        self._pause_s = 1 / records_per_s
        self._settings = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "message.timeout.ms": GIVEN_UP_MS,
            "linger.ms": 2,
            "log_level": 0,
            **PROMPT,
        }
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleeting load", daemon=True)

    def __enter__(self) -> FleetingLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(2 * FLUSH_S)

    def _run(self) -> None:
        producer, times = Producer(self._settings), self._made.times
        for number in itertools.count():
            if self._stopping.wait(self._pause_s):
                break
            if times != self._made.times:
                # librdkafka may know leaders of the old topic, see `pipeline_worker`.
                producer.purge()
                producer, times = Producer(self._settings), self._made.times
            try:
                producer.produce(self._made.topic, fleeting_mark(self._made) + b"%d" % number)
                producer.poll(0)
            except BufferError:
                producer.poll(self._pause_s)
            except KafkaException as problem:
                if problem.args[0].fatal():
                    producer = Producer(self._settings)
        producer.flush(FLUSH_S)
