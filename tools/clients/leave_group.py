"""How a member of a group ends whose library is librdkafka."""

from __future__ import annotations

import time

from confluent_kafka import Consumer

LEAVE_TIMEOUT_S = 10.0
PAUSE_S = 0.02


def leave_group(consumer: Consumer, *, is_static: bool = False, timeout_s: float = LEAVE_TIMEOUT_S) -> None:
    """`consumer.close()`, for one that has subscribed: commits what it has stored, leaves the group (not when
    `is_static`: with a `group.instance.id` its partitions wait for it), ends.

    Its callbacks run meanwhile. `close` alone sometimes never returns when a rebalance has been announced to the client
    and not yet to us: the callback then asks a part of librdkafka that is just ending (its issue 4041; seen with 2.16).
    So the partitions are given back first, while all of it still runs, which a static member cannot do without leaving.
    Records that come meanwhile are dropped.
    """
    try:
        if not is_static:
            _give_back(consumer, time.monotonic() + timeout_s)
    finally:
        consumer.close()


def _give_back(consumer: Consumer, deadline: float) -> None:
    consumer.unsubscribe()
    wait_s = 0.0
    while consumer.poll(wait_s) is not None or consumer.assignment():
        if time.monotonic() > deadline:
            break
        wait_s = PAUSE_S
