"""`ottla reassign execute --replica-alter-log-dirs-throttle`: set before a replica moves, removed once all is done (KIP-113)."""

from __future__ import annotations

import json

import pytest
from click.testing import Result

from protocol.types import TopicPartition
from tests.support.cli import ottla
from tests.support.fake_admin import FakeCluster
from tools.admin.config_values import Entity
from tools.admin.reassign_plan import Place, Replica

RATE = {"replica.alter.log.dirs.io.max.bytes.per.second": "700"}
STAYING = {"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["/new", "any"]}
"""Only broker 1's replica moves, between its directories."""
LEAVING = {"topic": "orders", "partition": 1, "replicas": [3, 1], "log_dirs": ["any", "/new"]}


def run(command: str, *options: str, rows: tuple[dict[str, object], ...] = (STAYING,)) -> Result:
    file = json.dumps({"partitions": rows})
    return ottla(f"reassign {command} --reassignment-json-file - {' '.join(options)}", file)


def configured(fake: FakeCluster) -> dict[str, dict[str, str]]:
    return {entity.name: dict(own) for entity, own in fake.configs.items() if own}


def test_execute_sets_the_throttle_on_the_moving_brokers_before_a_replica_moves(fake: FakeCluster) -> None:
    result = run("execute", "--replica-alter-log-dirs-throttle", "700")
    assert result.exit_code == 0
    assert [call[0] for call in fake.calls] == ["configs", "directories", "directories"]
    assert fake.calls[0] == ("configs", str(Entity("brokers", "1")), RATE)
    lines = result.output.splitlines()
    assert "Warning: run `ottla reassign verify` when all moves are done: it removes the throttle." in lines
    assert "The replica-alter-dir throttle limit was set to 700 B/s" in lines
    assert not any("inter-broker" in line for line in lines)


def test_verify_removes_the_throttle_once_nothing_moves(fake: FakeCluster) -> None:
    run("execute", "--replica-alter-log-dirs-throttle", "700")
    fake.places[Replica(TopicPartition("orders", 0), 1)] = Place("/old", "/new")
    moving = run("verify")
    assert "still in progress" in moving.output
    assert configured(fake) == {"1": RATE}
    done = run("verify", "--preserve-throttles")
    assert "completed successfully" in done.output
    assert configured(fake) == {"1": RATE}
    done = run("verify")
    assert "Clearing broker-level throttles on brokers 1" in done.output
    assert configured(fake) == {}


@pytest.mark.parametrize("output", ["text", "json"])
def test_watched_moves_keep_the_throttle_until_they_end(fake: FakeCluster, output: str) -> None:
    """The reassignment ends first. If it removed the throttles, the moves between directories would run at full speed."""
    rates: list[dict[str, dict[str, str]]] = []
    look = fake.log_directories
    fake.log_directories = lambda replicas: (rates.append(configured(fake)), look(replicas))[1]  # type: ignore[method-assign]
    options = ("--watch", "--throttle", "500", "--replica-alter-log-dirs-throttle", "700", "--format", output)
    result = run("execute", *options, rows=(STAYING, LEAVING))
    assert result.exit_code == 0, result.output
    assert rates
    assert all(rate["1"].items() >= RATE.items() for rate in rates)
    assert configured(fake) == {}
    if output == "json":
        last = json.loads(result.stdout.splitlines()[-1])
        assert last["throttles_removed"] == {"topics": ["orders"], "brokers": [1, 2, 3]}
    else:
        assert result.output.splitlines()[-1] == "Clearing topic-level throttles on topics orders"


def test_a_dead_broker_is_left_out(fake: FakeCluster) -> None:
    del fake.live[1]
    run("execute", "--replica-alter-log-dirs-throttle", "700")
    assert configured(fake) == {}


@pytest.mark.parametrize("watch", [(), ("--watch",)])
def test_a_refused_partition_does_not_hold_up_the_others(fake: FakeCluster, watch: tuple[str, ...]) -> None:
    """Replicas of accepted partitions move to their directories, the throttles go, and the command ends with the reason."""
    fake.refused = {TopicPartition("orders", 1): "orders-1: not now"}
    options = (*watch, "--throttle", "500", "--replica-alter-log-dirs-throttle", "700")
    result = run("execute", *options, rows=(STAYING, LEAVING))
    assert result.exit_code == 1
    assert "Successfully started log directory moves for: orders-0-1" in result.output
    assert result.output.splitlines()[-1] == "Error: not started: orders-1: not now"
    if watch:
        assert configured(fake) == {}
