"""`ottla group` as its user sees it: what is refused before a broker is asked, and what a cluster in memory is told."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from click.testing import CliRunner

from protocol.types import TopicPartition
from tools.admin.cluster_view import ClusterView, NodeView
from tools.admin.failures import AdminError
from tools.admin.topic_views import PartitionView
from tools.cli import main
from tools.groups import kafka_groups
from tools.groups.commands import group
from tools.groups.group_views import CommittedView, GroupView, ListedGroup

USAGE = 2
FAILURE = 1
END = 100
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@dataclass
class FakeGroups:
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
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeGroups:
    cluster = FakeGroups(
        {"idle": "Empty", "other": "Empty", "busy": "Stable"}, {"idle": {P0: 5}, "other": {P1: 6}, "busy": {P0: 7}}
    )
    monkeypatch.setattr(kafka_groups, "KafkaGroups", lambda *_arguments, **_options: cluster)
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "host:1")
    return cluster


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["describe"], "missing group name, or --all-groups"),
        (["describe", "g", "--all-groups"], "cannot be used together"),
        (["describe", ""], "a group name must not be empty"),
        (["describe", "g", "--state", "--members"], "one of --offsets, --members and --state"),
        (["list", "--state", "sleepy"], "--state 'sleepy' is unknown: use PreparingRebalance"),
        (["list", "--type", "share"], "--type 'share' is unknown: use Classic, Consumer"),
        (["delete"], "missing group name"),
        (["delete-offsets", "g"], "--topic"),
        (["delete-offsets", "g", "h", "--topic", "t"], "only one group"),
        (["reset-offsets", "--to-latest"], "missing group name"),
        (["reset-offsets", "g", "--topic", "t"], "use exactly one of --to-earliest"),
        (["reset-offsets", "g", "--topic", "t", "--to-latest", "--to-earliest"], "use exactly one of"),
        (["reset-offsets", "g", "--to-latest"], "missing partitions: use --topic, --all-topics"),
        (["reset-offsets", "g", "--to-latest", "--topic", "t", "--all-topics"], "missing partitions"),
        (["reset-offsets", "g", "--from-file", "f", "--topic", "t"], "missing partitions"),
        (["reset-offsets", "g", "--topic", "t", "--to-latest", "--dry-run", "--execute"], "cannot be used together"),
        (["reset-offsets", "g", "--topic", "t", "--to-offset", "-1"], "--to-offset"),
        (["reset-offsets", "g", "--topic", "t", "--shift-by", "x"], "--shift-by"),
        (
            ["reset-offsets", "g", "--topic", "t", "--to-datetime", "now"],
            "'now' is not a point in time: expected for example 2026-",
        ),
        (
            ["reset-offsets", "g", "--topic", "t", "--by-duration", "1w"],
            "'1w' is not a duration: expected for example P1DT2H30M",
        ),
        (
            ["reset-offsets", "g", "--topic", "t", "--to-latest", "--export", "--format", "json"],
            "cannot be combined with --format json",
        ),
    ],
)
def test_refusals(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(group, arguments)
    assert result.exit_code == USAGE
    assert says in result.output


def test_a_reset_acts_only_with_execute(fake: FakeGroups) -> None:
    result = CliRunner().invoke(group, ["reset-offsets", "idle", "--all-topics", "--to-latest"])
    assert result.exit_code == 0
    assert "Nothing was changed" in result.output
    assert fake.committed["idle"] == {P0: 5}
    result = CliRunner().invoke(group, ["reset-offsets", "idle", "--all-topics", "--to-latest", "--execute"])
    assert "Nothing was changed" not in result.output
    assert fake.committed["idle"] == {P0: END}


def test_groups_that_cannot_be_reset_do_not_keep_the_others(fake: FakeGroups) -> None:
    fake.states["none"] = "Empty"
    fake.broken = frozenset({"other"})
    arguments = ["reset-offsets", "--all-groups", "--all-topics", "--shift-by", "1", "--execute", "--export"]
    result = CliRunner().invoke(group, arguments)
    assert result.exit_code == FAILURE
    assert result.stdout == "idle,orders,0,6\n"
    (line,) = result.stderr.splitlines()
    assert "group 'busy' is inactive, but the current state is Stable" in line
    assert "group 'none' has no committed offsets" in line
    assert "the offsets of group 'other' were not reset: a consumer has joined" in line
    assert fake.committed == {"idle": {P0: 6}, "other": {P1: 6}, "busy": {P0: 7}}


def test_a_group_that_is_not_in_the_file_is_left_alone(fake: FakeGroups) -> None:
    arguments = ["reset-offsets", "idle", "other", "--from-file", "-", "--execute", "--format", "json"]
    result = CliRunner().invoke(group, arguments, input="idle,orders,1,9\n")
    assert result.exit_code == 0, result.output
    row = {"group": "idle", "topic": "orders", "partition": 1, "new_offset": 9, "current_offset": None}
    assert json.loads(result.stdout) == {"executed": True, "offsets": [row]}
    assert fake.committed["other"] == {P1: 6}


def test_describe_tells_what_is_missing_after_what_is_there(fake: FakeGroups) -> None:
    result = CliRunner().invoke(group, ["describe", "gone", "idle", "--format", "json"])
    assert result.exit_code == FAILURE
    (described,) = json.loads(result.stdout)
    assert [(row["current_offset"], row["lag"]) for row in described["offsets"]] == [(5, END - 5)]
    assert result.stderr == "Error: Consumer group 'gone' does not exist; `ottla group list` shows the groups\n"


def test_a_silent_broker_is_no_missing_group(fake: FakeGroups) -> None:
    """What would act on all groups does not act on some; a list shows what it has, and says that it may lack some."""
    fake.problems = ["broker 2: timed out"]
    result = CliRunner().invoke(group, ["delete", "--all-groups"])
    assert (result.exit_code, "not all brokers listed their groups" in result.output) == (FAILURE, True)
    result = CliRunner().invoke(group, ["list"])
    assert (result.exit_code, result.stdout) == (FAILURE, "idle\nother\nbusy\n")
    assert "groups may be missing" in result.stderr


def test_delete(fake: FakeGroups) -> None:
    result = CliRunner().invoke(group, ["delete", "idle", "--group", "busy", "other"])
    assert result.exit_code == FAILURE
    assert result.stdout == "Deletion of requested consumer groups ('idle', 'other') was successful.\n"
    assert result.stderr == "Error: group 'busy' is busy\n"


def test_names_are_completed(fake: FakeGroups) -> None:
    from click.shell_completion import ShellComplete

    shell = ShellComplete(main, {}, "ottla", "_OTTLA_COMPLETE")
    assert [item.value for item in shell.get_completions(["group", "describe"], "i")] == ["idle"]
    assert [item.value for item in shell.get_completions(["consume", "--group"], "o")] == ["other"]
