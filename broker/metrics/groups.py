"""Consumer groups that this broker coordinates: kafka.coordinator.group GroupMetadataManager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from broker.groups.consumer_group.consumer_group import ConsumerGroupState
from broker.groups.group.messages import CLASSIC, CONSUMER
from broker.groups.group.states import GroupState
from broker.groups.held_groups import HeldGroups
from broker.process.exposition import GAUGE, single


def group_section(groups: HeldGroups) -> Iterator[str]:
    states: Counter[str] = Counter()
    types: Counter[str] = Counter()
    offsets = members = 0
    for held in groups:
        states[held.group.state.value] += 1
        types[CLASSIC if held.classic is not None else CONSUMER] += 1
        offsets += len(held.offsets)
        members += held.group.member_count
        yield ""
    name = "kafka_coordinator_group_groupmetadatamanager_num"
    yield from single(f"{name}groups", GAUGE, "Groups that this broker coordinates", sum(states.values()))
    yield from single(f"{name}offsets", GAUGE, "Committed offsets of these groups", offsets)
    for state in dict.fromkeys(state.value for state in (*GroupState, *ConsumerGroupState)):
        yield from single(f"{name}groups{state.lower()}", GAUGE, f"Groups in the state {state}", states[state])
    text = "Groups of the new kind (KIP-848)"
    yield from single("ottla_consumer_groups", GAUGE, text, types[CONSUMER])
    yield from single("ottla_group_members", GAUGE, "Members of these groups", members)
    yield from single(
        "ottla_group_memory_bytes", GAUGE, "Approximate memory of these groups (group.memory.max.bytes)", groups.bytes
    )
