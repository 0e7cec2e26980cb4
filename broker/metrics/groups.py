"""Consumer groups that this broker coordinates: kafka.coordinator.group GroupMetadataManager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from broker.groups.group.states import GroupState
from broker.groups.held_groups import HeldGroups
from broker.process.exposition import GAUGE, single


def group_section(groups: HeldGroups) -> Iterator[str]:
    states: Counter[GroupState] = Counter()
    offsets = members = 0
    for held in groups:
        states[held.group.state] += 1
        offsets += len(held.offsets)
        members += held.group.member_count
        yield ""
    name = "kafka_coordinator_group_groupmetadatamanager_num"
    yield from single(f"{name}groups", GAUGE, "Groups that this broker coordinates", sum(states.values()))
    yield from single(f"{name}offsets", GAUGE, "Committed offsets of these groups", offsets)
    for state in GroupState:
        text = f"Groups in the state {state.value}"
        yield from single(f"{name}groups{state.value.lower()}", GAUGE, text, states[state])
    yield from single("ottla_group_members", GAUGE, "Members of these groups", members)
    yield from single(
        "ottla_group_memory_bytes", GAUGE, "Approximate memory of these groups (group.memory.max.bytes)", groups.bytes
    )
