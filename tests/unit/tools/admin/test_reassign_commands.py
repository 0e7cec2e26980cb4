"""`ottla reassign ...` against a cluster in memory: Kafka's sentences, the order of steps, every refusal (CTL-10, CTL-11)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from protocol.types import TopicPartition
from tests.support.cli import ottla
from tests.support.fake_admin import FakeCluster, three_brokers
from tools.admin import reassign_run
from tools.admin.config_values import Entity

FAILURE = 1
INTERRUPTED = 130

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
THROTTLES = {"leader.replication.throttled.rate": "500", "follower.replication.throttled.rate": "500"}


def plan(*rows: tuple[int, list[int]], topic: str = "orders") -> str:
    return json.dumps({"partitions": [{"topic": topic, "partition": p, "replicas": r} for p, r in rows]})


BOTH = plan((0, [3, 1]), (1, [1, 2]))


def run(command: str, file: str, *options: str) -> Result:
    name = "--topics-to-move-json-file" if command == "generate" else "--reassignment-json-file"
    return ottla(shlex.join(["reassign", command, name, "-", *options]), file)


def events(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_generate(fake: FakeCluster) -> None:
    result = run("generate", '{"topics":[{"topic":"orders"}]}', "--broker-list", "1,3")
    heading, current, _, proposal_heading, proposed = result.output.splitlines()
    assert heading == "Current partition replica assignment"
    assert [row["replicas"] for row in json.loads(current)["partitions"]] == [[1, 2], [2, 3]]
    assert proposal_heading == "Proposed partition reassignment configuration"
    rows = json.loads(proposed)["partitions"]
    assert [sorted(row["replicas"]) for row in rows] == [[1, 3], [1, 3]]
    assert rows[0]["replicas"] != rows[1]["replicas"]
    assert fake.calls == []


@pytest.mark.parametrize(
    ("topic", "brokers", "says"),
    [
        ("orders", "1,9", "broker 9 is not live; --broker-list can name 1,2,3"),
        ("orders", "1", "name more brokers in --broker-list"),
        ("nope", "1,2", "Error: topic 'nope' does not exist; `ottla topic list` shows the topics"),
    ],
)
def test_generate_refuses(fake: FakeCluster, topic: str, brokers: str, says: str) -> None:
    result = run("generate", f'{{"topics":[{{"topic":"{topic}"}}]}}', "--broker-list", brokers)
    assert (result.exit_code, result.output.count("\n")) == (FAILURE, 1)
    assert says in result.output


def test_execute_prints_the_current_replicas_and_starts(fake: FakeCluster) -> None:
    result = run("execute", BOTH)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "Current partition replica assignment"
    assert [row["replicas"] for row in json.loads(lines[2])["partitions"]] == [[1, 2], [2, 3]]
    assert lines[-1] == "Successfully started partition reassignments for orders-0,orders-1"
    assert fake.calls == [("reassign", {"orders-0": (3, 1), "orders-1": (1, 2)})]


def test_throttles_are_set_before_the_move(fake: FakeCluster) -> None:
    result = run("execute", BOTH, "--throttle", "500", "--format", "json")
    assert fake.calls == [
        (
            "configs",
            "topic orders",
            {
                "leader.replication.throttled.replicas": "0:1,0:2,1:2,1:3",
                "follower.replication.throttled.replicas": "0:3,1:1",
            },
        ),
        *(("configs", f"broker {broker}", THROTTLES) for broker in (1, 2, 3)),
        ("reassign", {"orders-0": (3, 1), "orders-1": (1, 2)}),
    ]
    said = json.loads(result.output)
    assert (said["started"], said["refused"], said["throttle"]) == (["orders-0", "orders-1"], {}, 500)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("{", "Error: standard input: line 1, column 2: not JSON"),
        (plan((0, [9, 2])), "broker 9 is unknown (live: 1,2)"),
        (plan((0, [1, 2]), topic="nope"), "topic nope does not exist"),
    ],
)
def test_execute_refuses_a_bad_plan_and_starts_nothing(fake: FakeCluster, file: str, says: str) -> None:
    del fake.live[3]
    result = run("execute", file, "--throttle", "5")
    assert result.exit_code == FAILURE
    assert says in result.output
    assert len(result.output.splitlines()) == 1
    assert fake.calls == []


def test_execute_needs_additional_during_another_move(fake: FakeCluster) -> None:
    fake.looks_per_move = 99
    run("execute", plan((0, [3, 1])))
    refused = run("execute", plan((1, [1, 2])))
    assert refused.exit_code == FAILURE
    assert "use --additional" in refused.output
    added = run("execute", plan((1, [1, 2])), "--additional", "--throttle", "500")
    assert added.exit_code == 0
    configs = fake.configs[Entity("topics", "orders")]
    assert configs["follower.replication.throttled.replicas"] == "0:3,1:1"  # the other move keeps its own


def test_a_refused_reassignment_leaves_no_throttle(fake: FakeCluster) -> None:
    fake.refused = {ORDERS_0: "orders-0: not now", ORDERS_1: "orders-1: not now"}
    result = run("execute", BOTH, "--throttle", "500")
    assert result.exit_code == FAILURE
    assert "Error: not started: orders-0: not now; orders-1: not now" in result.output
    assert not any(fake.configs.values())


def test_watch_prints_each_change_and_removes_the_throttles(fake: FakeCluster) -> None:
    result = run("execute", BOTH, "--watch", "--throttle", "500")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert any(line.startswith("0 of 2 partitions, 50%, 1000 B of 2.0 KiB") for line in lines)
    assert any(line.startswith("2 of 2 partitions, 100%, 2.0 KiB of 2.0 KiB") for line in lines)
    assert lines[-4:] == [
        "Reassignment of partition orders-0 is completed.",
        "Reassignment of partition orders-1 is completed.",
        "Clearing broker-level throttles on brokers 1,2,3",
        "Clearing topic-level throttles on topics orders",
    ]
    assert not any(fake.configs.values())


def test_batches_start_one_after_the_other(fake: FakeCluster) -> None:
    result = run("execute", BOTH, "--batch", "1", "--format", "json")
    assert result.exit_code == 0
    assert fake.calls == [("reassign", {"orders-0": (3, 1)}), ("reassign", {"orders-1": (1, 2)})]
    told = events(result)
    assert [event["partitions"] for event in told if event["event"] == "started"] == [["orders-0"], ["orders-1"]]
    progress = [event for event in told if event["event"] == "progress"]
    assert [event["percent"] for event in progress] == [25.0, 50.0, 75.0, 100.0]
    assert progress[0]["bytes_left"] == 1500  # those of the batch that waits are counted
    assert [row["state"] for row in told[-1]["partitions"]] == ["completed", "completed"]


def test_watch_waits_for_the_next_controller(fake: FakeCluster) -> None:
    fake.silent_looks = 3
    assert run("execute", BOTH, "--watch").exit_code == 0


def test_watch_gives_up_when_nobody_answers_and_says_that_the_move_continues(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassign_run, "PATIENCE_S", 0.0)
    fake.silent_looks = 10_000
    result = run("execute", BOTH, "--watch")
    assert result.exit_code == FAILURE
    assert "the move continues: see `ottla reassign list`" in result.output


def test_watch_names_the_dead_broker_that_it_waits_for(fake: FakeCluster) -> None:
    fake.looks_per_move = 3
    dies = fake.reassignments

    def reassignments(patience_s: float = 0) -> Any:
        if fake.looks == 2:
            fake.live.pop(3)
        return dies()

    fake.reassignments = reassignments  # type: ignore[method-assign]
    result = run("execute", plan((0, [3, 1])), "--watch")
    assert "; waiting for broker 3, which is down" in result.output


def test_interrupt_leaves_the_move_running_and_says_how_to_look_again(fake: FakeCluster, tmp_path: Path) -> None:
    fake.interrupt_at_look = 3
    file = tmp_path / "plan.json"
    file.write_text(BOTH)
    result = ottla(f"reassign execute --watch --reassignment-json-file {file}")
    assert result.exit_code == INTERRUPTED
    assert "The move continues without this command." in result.stderr
    assert f"ottla reassign verify --reassignment-json-file {file}" in result.stderr
    assert set(fake.under_way) == {ORDERS_0, ORDERS_1}


def test_verify_in_progress_completed_failed(fake: FakeCluster) -> None:
    fake.looks_per_move = 99
    run("execute", plan((0, [3, 1])), "--throttle", "500")
    result = run("verify", plan((0, [3, 1]), (1, [2, 3])))
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "Status of partition reassignment:",
        "Reassignment of partition orders-0 is still in progress (50%, 500 B of 1000 B).",
        "Reassignment of partition orders-1 is completed.",
    ]
    assert fake.configs[Entity("brokers", "1")] == THROTTLES  # something moves still
    fake.looks_left[ORDERS_0] = 0
    done = run("verify", plan((0, [3, 1]), (1, [1, 2]), (7, [1])), "--format", "json")
    assert done.exit_code == FAILURE
    said = json.loads(done.stdout)
    assert [row["state"] for row in said["partitions"]] == ["completed", "failed", "failed"]
    assert said["throttles_removed"] == {"topics": ["orders"], "brokers": [1, 2, 3]}
    assert "2 of 3 partitions do not have the replicas in the file" in done.stderr


def moved(fake: FakeCluster) -> None:
    run("execute", BOTH, "--throttle", "500")
    fake.looks_left = dict.fromkeys(fake.looks_left, 0)


def moving(fake: FakeCluster) -> None:
    fake.looks_per_move = 99
    run("execute", BOTH, "--throttle", "500")


@pytest.mark.parametrize(
    ("before", "command", "file", "options"),
    [
        (None, "execute", BOTH, ("--watch", "--throttle", "500", "--preserve-throttles")),
        (moved, "verify", BOTH, ("--preserve-throttles",)),
        (moving, "cancel", BOTH, ("--preserve-throttles",)),
        (moving, "cancel", plan((0, [3, 1])), ()),
    ],
    ids=["execute", "verify", "cancel", "another-move-needs-them"],
)
def test_throttles_stay_if_asked_or_needed_by_another_move(
    fake: FakeCluster,
    before: Callable[[FakeCluster], None] | None,
    command: str,
    file: str,
    options: tuple[str, ...],
) -> None:
    if before is not None:
        before(fake)
    result = run(command, file, *options)
    assert result.exit_code == 0
    assert "Clearing" not in result.output
    assert fake.configs[Entity("brokers", "1")] == THROTTLES


def test_cancel_restores_and_removes_throttles(fake: FakeCluster) -> None:
    moving(fake)
    result = run("cancel", BOTH)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "Successfully cancelled partition reassignments for: orders-0,orders-1",
        "Clearing broker-level throttles on brokers 1,2,3",
        "Clearing topic-level throttles on topics orders",
    ]
    assert fake.replicas == three_brokers().replicas
    again = run("cancel", BOTH)
    assert (again.exit_code, again.output) == (0, "None of the specified partition reassignments are active.\n")


def test_a_refused_cancellation_is_reported_as_not_cancelled(fake: FakeCluster) -> None:
    moving(fake)
    fake.refused = {ORDERS_0: "orders-0: not now"}
    result = run("cancel", BOTH)
    assert result.exit_code == FAILURE
    assert "Error: not cancelled: orders-0: not now" in result.output


def test_list(fake: FakeCluster) -> None:
    assert ottla("reassign list").output == "No partition reassignments found.\n"
    fake.looks_per_move = 99
    run("execute", plan((0, [3, 1])))
    assert ottla("reassign list").output.splitlines() == [
        "Current partition reassignments:",
        "orders-0: replicas: 3,1,2. adding: 3. removing: 2. 50%, 500 B of 1000 B",
    ]
    (row,) = json.loads(ottla("reassign list --format json").output)
    assert row == {
        "topic": "orders",
        "partition": 0,
        "replicas": [3, 1, 2],
        "adding_replicas": [3],
        "removing_replicas": [2],
        "bytes_moved": 500,
        "bytes_left": 500,
        "bytes_total": 1000,
        "percent": 50.0,
    }
