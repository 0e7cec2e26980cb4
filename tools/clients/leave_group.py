"""Closes a group member that uses librdkafka."""

from __future__ import annotations

import time

from confluent_kafka import Consumer

LEAVE_TIMEOUT_S = 10.0
PAUSE_S = 0.02


def leave_group(consumer: Consumer) -> None:
    """Use this instead of `consumer.close()` for a subscribed consumer: commits the stored offsets, leaves the group, closes.

    Do not use it for a static member (with a `group.instance.id`): after `close` a static member keeps its partitions, after this it
    does not.

    The consumer's callbacks run meanwhile. `close` alone sometimes never returns if librdkafka knows of a rebalance that it has
    not reported to the application yet: the callback then calls a part of librdkafka that is shutting down (its issue 4041; seen with
    2.16). Therefore the partitions are given back first, while all parts still run. Records that arrive meanwhile are dropped.
    """
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    wait_s = 0.0
    try:
        consumer.unsubscribe()
        while (consumer.poll(wait_s) is not None or consumer.assignment()) and time.monotonic() < deadline:
            wait_s = PAUSE_S
    finally:
        consumer.close()
