"""How a member of a group ends whose library is librdkafka."""

from __future__ import annotations

import time

from confluent_kafka import Consumer

LEAVE_TIMEOUT_S = 10.0
PAUSE_S = 0.02


def leave_group(consumer: Consumer) -> None:
    """`consumer.close()`, for one that has subscribed: commits what it has stored, leaves the group, ends.

    Not for a static member, which has a `group.instance.id`: its partitions wait for it after `close`, this gives them up.

    Its callbacks run meanwhile. `close` alone sometimes never returns when a rebalance has been announced to the client
    and not yet to us: the callback then asks a part of librdkafka that is just ending (its issue 4041; seen with 2.16).
    So the partitions are given back first, while all of it still runs. Records that come meanwhile are dropped.
    """
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    wait_s = 0.0
    try:
        consumer.unsubscribe()
        while (consumer.poll(wait_s) is not None or consumer.assignment()) and time.monotonic() < deadline:
            wait_s = PAUSE_S
    finally:
        consumer.close()
