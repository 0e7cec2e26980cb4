"""`ottla group` as its user sees the command, against groups in memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from click.shell_completion import ShellComplete

from protocol.types import TopicPartition
from tests.support.cli import ottla
from tools.admin.cluster_view import ClusterView, NodeView
from tools.admin.topic_views import PartitionView
from tools.cli import main
from tools.failures import AdminError
from tools.groups import kafka_groups
from tools.groups.group_views import CommittedView, GroupView, ListedGroup

FAILURE = 1
END = 100
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@dataclass
class GroupsInMemory:
    """Topic `orders` of two partitions with END records; `states` are the groups. `broken` cannot be altered."""

    states: dict[str, str]
    committed: dict[str, dict[TopicPartition, int]]
    broken: frozenset[str] = frozenset()
    problems: list[str] = field(default_factory=list)

    def cluster(self) -> ClusterView:
        return ClusterView(1, (), {"orders": tuple(PartitionView(number, 1, (1,), (1,)) for number in range(2))})

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = (), timeout_s: float = 0
    ) -> tuple[list[ListedGroup], list[str]]:
        listed = [ListedGroup(name, "Classic", state, False) for name, state in self.states.items()]
        return [found for found in listed if not states or found.state in states], self.problems

    def describe_groups(self, groups: Iterable[str]) -> list[GroupView]:
        return [GroupView(name, self.states.get(name, "Dead"), "", NodeView(1, "h", 9), ()) for name in groups]

    def committed_offsets(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, CommittedView]]:
        return {
            name: {partition: CommittedView(offset) for partition, offset in self.committed.get(name, {}).items()}
            for name in groups
        }

    def earliest_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def latest_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, END)

    def alter_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        if name in self.broken:
            raise AdminError(f"the offsets of group {name!r} were not reset: a consumer has joined meanwhile")
        self.committed.setdefault(name, {}).update(offsets)

    def delete_groups(self, groups: Collection[str]) -> dict[str, str | None]:
        return {name: None if self.states[name] == "Empty" else f"group {name!r} is busy" for name in groups}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> GroupsInMemory:
    cluster = GroupsInMemory(
        {"idle": "Empty", "other": "Empty", "busy": "Stable"}, {"idle": {P0: 5}, "other": {P1: 6}, "busy": {P0: 7}}
    )
    monkeypatch.setattr(kafka_groups, "KafkaGroups", lambda *_arguments, **_options: cluster)
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "host:1")
    return cluster


def test_a_reset_acts_only_with_execute(fake: GroupsInMemory) -> None:
    reset = "group reset-offsets idle --all-topics --to-latest"
    result = ottla(reset)
    assert result.exit_code == 0
    assert "Nothing was changed" in result.output
    assert fake.committed["idle"] == {P0: 5}
    assert "Nothing was changed" not in ottla(f"{reset} --execute").output
    assert fake.committed["idle"] == {P0: END}


def test_groups_that_cannot_be_reset_do_not_stop_the_others(fake: GroupsInMemory) -> None:
    fake.states["none"] = "Empty"
    fake.broken = frozenset({"other"})
    result = ottla("group reset-offsets --all-groups --all-topics --shift-by 1 --execute --export")
    assert result.exit_code == FAILURE
    assert result.stdout == "idle,orders,0,6\n"
    (line,) = result.stderr.splitlines()
    assert "group 'busy' is inactive, but the current state is Stable" in line
    assert "group 'none' has no committed offsets" in line
    assert "the offsets of group 'other' were not reset: a consumer has joined" in line
    assert fake.committed == {"idle": {P0: 6}, "other": {P1: 6}, "busy": {P0: 7}}


def test_a_group_that_is_not_in_the_file_keeps_its_offsets(fake: GroupsInMemory) -> None:
    result = ottla("group reset-offsets idle other --from-file - --execute --format json", "idle,orders,1,9\n")
    assert result.exit_code == 0, result.output
    row = {"group": "idle", "topic": "orders", "partition": 1, "new_offset": 9, "current_offset": None}
    assert json.loads(result.stdout) == {"executed": True, "offsets": [row]}
    assert fake.committed["other"] == {P1: 6}


def test_describe_reports_missing_groups_after_the_others(fake: GroupsInMemory) -> None:
    result = ottla("group describe gone idle --format json")
    assert result.exit_code == FAILURE
    (described,) = json.loads(result.stdout)
    assert [(row["current_offset"], row["lag"]) for row in described["offsets"]] == [(5, END - 5)]
    assert result.stderr == "Error: Consumer group 'gone' does not exist; `ottla group list` shows the groups\n"


def test_a_silent_broker_is_not_a_missing_group(fake: GroupsInMemory) -> None:
    """A command on all groups is refused. A list shows the groups that were found, and says that some may be missing."""
    fake.problems = ["broker 2: timed out"]
    result = ottla("group delete --all-groups")
    assert (result.exit_code, "not all brokers listed their groups" in result.output) == (FAILURE, True)
    result = ottla("group list")
    assert (result.exit_code, result.stdout) == (FAILURE, "idle\nother\nbusy\n")
    assert "groups may be missing" in result.stderr


def test_delete(fake: GroupsInMemory) -> None:
    result = ottla("group delete idle --group busy other")
    assert result.exit_code == FAILURE
    assert result.stdout == "Deletion of requested consumer groups ('idle', 'other') was successful.\n"
    assert result.stderr == "Error: group 'busy' is busy\n"


def test_names_are_completed(fake: GroupsInMemory) -> None:
    shell = ShellComplete(main, {}, "ottla", "_OTTLA_COMPLETE")
    assert [item.value for item in shell.get_completions(["group", "describe"], "i")] == ["idle"]
    assert [item.value for item in shell.get_completions(["consume", "--group"], "o")] == ["other"]
