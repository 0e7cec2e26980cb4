"""Groups stay on the page while their coordinator is away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from protocol.kafka.api_keys import ApiKey
from tools.console.broker_connections import NoAnswer
from tools.console.reading import WITHOUT_COORDINATOR, GroupRow, groups


class Brokers:
    """Answers of brokers: broker -> the groups that it coordinates. The others are silent."""

    def __init__(self, **coordinated: list[str]) -> None:
        self._coordinated = {int(name.removeprefix("b")): found for name, found in coordinated.items()}

    async def ask(self, broker: int, key: ApiKey, version: int, body: Any) -> Any:
        if broker not in self._coordinated:
            raise NoAnswer("silent")
        if key is ApiKey.LIST_GROUPS:
            rows = [
                SimpleNamespace(
                    group_id=group,
                    group_state="Stable",
                    protocol_type="consumer",
                    group_type="consumer" if group.startswith("new") else "classic",
                )
                for group in self._coordinated[broker]
            ]
            return SimpleNamespace(groups=rows)
        if key is ApiKey.DESCRIBE_GROUPS:
            return SimpleNamespace(groups=[SimpleNamespace(group_id=group, members=[1]) for group in body["groups"]])
        if key is ApiKey.CONSUMER_GROUP_DESCRIBE:
            rows = [SimpleNamespace(group_id=group, members=[1, 2]) for group in body["group_ids"]]
            return SimpleNamespace(groups=rows)
        return SimpleNamespace(error_code=0, topics=[])


def read(before: dict[str, GroupRow], **coordinated: list[str]) -> dict[str, tuple[str, int]]:
    links: Any = Brokers(**coordinated)
    return {name: (row.state, row.coordinator) for name, row in asyncio.run(groups(links, [1, 2], before)).items()}


def test_members_of_groups_of_both_kinds() -> None:
    links: Any = Brokers(b1=["old", "new"])
    assert {name: row.members for name, row in asyncio.run(groups(links, [1], {})).items()} == {"new": 2, "old": 1}


def test_groups_of_brokers_that_do_not_answer() -> None:
    before = {"a": GroupRow("Stable", 1), "b": GroupRow("Stable", 2), "c": GroupRow("Stable", 3)}
    assert read(before, b2=["b"]) == {
        "a": (WITHOUT_COORDINATOR, 1),  # broker 1 is silent
        "b": ("Stable", 2),
        "c": (WITHOUT_COORDINATOR, 3),  # broker 3 is not asked: it is down
    }
    assert read(before, b1=[], b2=["a", "c"]) == {"a": ("Stable", 2), "c": ("Stable", 2)}  # b is deleted
