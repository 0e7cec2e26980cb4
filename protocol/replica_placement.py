"""Chooses the brokers for the replicas of a new topic (CTL-7, Kafka's AdminUtils). Pure: the caller passes the random numbers.

Without racks, the first replica of partition i is on the broker at (start + i) mod n of the ring, and its j-th follower `shift` + j
brokers after that. The shift grows after each round of n partitions, so that followers spread. If every broker has a rack, the ring
alternates between racks, and a replica skips a rack or broker that already has the partition while others do not have it.

Example: brokers 0..4, 3 replicas, start 0, shift 0: partition 0 is [0, 1, 2], 1 is [1, 2, 3], ... 5 is [0, 2, 3].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class PlacementError(ValueError):
    """The replication factor is impossible with these brokers."""


def place(
    brokers: Sequence[tuple[int, str | None]],
    partitions: int,
    replication_factor: int,
    *,
    start_index: int = 0,
    shift: int = 0,
    first_partition: int = 0,
) -> dict[int, tuple[int, ...]]:
    """partition -> replicas, the preferred leader first. `brokers` are (id, rack). Raises PlacementError."""
    if replication_factor < 1 or replication_factor > len(brokers):
        raise PlacementError(
            f"replication factor {replication_factor} is not possible with {len(brokers)} live brokers"
        )
    racks = {broker: rack for broker, rack in brokers if rack is not None}
    rack_aware = len(racks) == len(brokers)
    ring = _alternate(racks) if rack_aware else sorted(broker for broker, _ in brokers)
    count = len(ring)
    placed = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % count == 0:
            shift += 1
        first = (partition + start_index) % count
        if rack_aware:
            placed[partition] = _rack_aware(ring, racks, first, shift, replication_factor)
        else:
            followers = (ring[_further(first, shift, j, count)] for j in range(replication_factor - 1))
            placed[partition] = (ring[first], *followers)
    return placed


def _further(first: int, shift: int, j: int, count: int) -> int:
    """The ring index of follower number `j` (from 0), which is never the index of the first replica."""
    return (first + 1 + (shift + j) % (count - 1)) % count


def _rack_aware(
    ring: Sequence[int], racks: Mapping[int, str], first: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    count = len(ring)
    rack_count = len(set(racks.values()))
    replicas = [ring[first]]
    used_racks = {racks[ring[first]]}
    j = 0
    while len(replicas) < replication_factor:
        candidate = ring[_further(first, shift * rack_count, j, count)]
        rack = racks[candidate]
        rack_is_free = rack not in used_racks or len(used_racks) == rack_count
        broker_is_free = candidate not in replicas
        if rack_is_free and broker_is_free:
            replicas.append(candidate)
            used_racks.add(rack)
        j += 1
    return tuple(replicas)


def _alternate(racks: Mapping[int, str]) -> list[int]:
    """The brokers, alternating between racks: {0: a, 1: b, 2: a, 3: b} gives [0, 1, 2, 3]."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack)]
    ring = []
    for turn in range(max(map(len, queues))):
        ring += [queue[turn] for queue in queues if turn < len(queue)]
    return ring
