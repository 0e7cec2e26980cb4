"""What counts as healthy, and how it is printed."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from protocol.types import Assignment, LeaderAndIsr, TopicPartition
from tests.support.cli import ottla
from tests.support.fake_admin import FakeCluster, three_brokers
from tools.admin.bootstrap import BOOTSTRAP_VARIABLE
from tools.admin.cluster_view import ClusterView, NodeView
from tools.cluster import health_commands, znode_problems
from tools.cluster.health import assess, health_lines
from tools.cluster.refusing_nodes import refusing
from tools.cluster.znode_problems import problems
from tools.cluster.zookeeper_view import ZooKeeperView
from tools.failures import AdminError

FAILURE = 1
ORDERS_0 = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("live", "controller", "reasons"),
    [
        ([1, 2, 3], 1, []),
        ([1, 2, 3], None, ["no_elected_controller"]),
        ([1, 2, 3], 9, ["no_elected_controller"]),  # the named controller is down
        ([1, 2], 1, ["nodes_down", "under_replicated_partitions"]),
        ([1], 1, ["nodes_down", "leaderless_partitions", "under_replicated_partitions"]),
    ],
)
def test_reasons(live: list[int], controller: int | None, reasons: list[str]) -> None:
    found = assess(three_brokers(live=dict.fromkeys(live), controller=controller).cluster(), {})
    assert found.reasons == reasons
    assert found.is_healthy == (not reasons)
    assert found.nodes == (1, 2, 3)


def test_a_replica_that_is_being_added_is_not_missing() -> None:
    fake = three_brokers()
    fake.alter_reassignments({ORDERS_0: (3, 1)})
    assert assess(fake.cluster(), fake.under_way).is_healthy
    assert assess(fake.cluster(), {}).under_replicated == (ORDERS_0,)
    assert assess(fake.cluster(), {ORDERS_0: Assignment((3, 1, 2), (), ())}).under_replicated == (ORDERS_0,)


def test_the_text_is_that_of_rpk() -> None:
    assert health_lines(assess(three_brokers(live={1: None}).cluster(), {})) == [
        "CLUSTER HEALTH OVERVIEW",
        "=======================",
        "Healthy:                          false",
        "Unhealthy reasons:                [nodes_down leaderless_partitions under_replicated_partitions]",
        "Controller ID:                    1",
        "All nodes:                        [1 2 3]",
        "Nodes down:                       [2 3]",
        "Leaderless partitions (1):        [orders-1]",
        "Under-replicated partitions (2):  [orders-0 orders-1]",
    ]


ORDERS_PATHS = [f"/brokers/topics/orders/partitions/{number}/state" for number in range(3)]


def test_a_partition_between_others_that_the_metadata_leaves_out_has_no_leader() -> None:
    """All that is known without ZooKeeper. A Metadata answer has no partition without a state."""
    view = three_brokers().cluster()
    found = assess(ClusterView(view.controller, view.nodes, {"orders": view.topics["orders"][1:]}), {})
    assert found.reasons == ["leaderless_partitions"]
    assert found.leaderless == (ORDERS_0,)
    assert found.why_leaderless[ORDERS_0] == (
        f"it is not in the metadata: {ORDERS_PATHS[0]} in ZooKeeper is missing or not readable"
    )


def test_what_only_zookeeper_shows() -> None:
    """orders-0 is led: its controller read the state before it became unreadable. orders-2 and orders-3 are in no metadata."""
    told = three_brokers().cluster()
    nodes = ZooKeeperView(
        topic_ids={"orders": "id", "unnamed": None, "old": None},
        assignment={TopicPartition("orders", number): Assignment((4, 5)) for number in range(4)}
        | {TopicPartition("old", 0): Assignment((1,))},
        states={TopicPartition("orders", 1): LeaderAndIsr(1, 7, (1, 2), 4)},
        unreadable={ORDERS_PATHS[0]: "no JSON", ORDERS_PATHS[2]: "isr is missing"},
        pending={"/admin/delete_topics/old": "to be deleted"},
    )
    found = assess(told, {}, {}, frozenset(), problems(nodes))
    assert found.reasons == ["leaderless_partitions", "unreadable_nodes", "topics_without_id"]
    assert health_lines(found)[7:] == [
        "Leaderless partitions (2):        [orders-2 orders-3]",
        "Under-replicated partitions (0):  []",
        f"Unreadable nodes (2):             [{ORDERS_PATHS[0]} {ORDERS_PATHS[2]}]",
        "Topics without an id (1):         [unnamed]",
        "",
        f"orders-2: {ORDERS_PATHS[2]} is not readable: isr is missing",
        "orders-3: it has never had a leader: none of its replicas 4,5 was live when it was created",
        f"{ORDERS_PATHS[0]}: no JSON",
        f"{ORDERS_PATHS[2]}: isr is missing",
    ]


def test_only_what_two_reads_find_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that was just created has neither an id nor states for a moment."""
    lasting, new = TopicPartition("lasting", 0), TopicPartition("new", 0)
    views = [
        ZooKeeperView(
            topic_ids={"named": "id"} | {tp.topic: None for tp in (lasting, *others)},
            assignment=dict.fromkeys((lasting, *others), Assignment((1,))),
            unreadable=dict.fromkeys(("/lasting", *(f"/{tp.topic}" for tp in others)), "no JSON"),
        )
        for others in ((new,), ())
    ]
    monkeypatch.setattr(znode_problems, "PAUSE_S", 0)
    monkeypatch.setattr(znode_problems, "ZooKeeperReader", lambda *_, **settings: Reader(views))
    found = znode_problems.find("fake")
    assert found is not None
    assert (list(found.unreadable), found.without_id, list(found.without_state)) == (
        ["/lasting"],
        ("lasting",),
        [lasting],
    )


class Reader:
    """Reads these views, one after the other."""

    def __init__(self, views: list[ZooKeeperView]) -> None:
        self._views = views

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def read(self) -> ZooKeeperView:
        return self._views.pop(0)


@pytest.fixture(autouse=True)
def refused(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Which nodes of a fake cluster refuse connections, and why they are down. There are no pauses."""
    found: dict[int, str] = {}
    monkeypatch.setattr(health_commands, "WATCH_S", 0.0)
    monkeypatch.setattr(health_commands, "refusing", lambda nodes: found)
    return found


def test_a_killed_broker_is_down_although_it_is_registered(fake: FakeCluster, refused: dict[int, str]) -> None:
    refused[2] = "registered, but does not answer: host:9002 refuses connections"
    said = ottla("cluster health")
    assert said.exit_code == FAILURE
    assert "Unhealthy reasons:                [nodes_down]" in said.output
    assert "Nodes down:                       [2]" in said.output
    assert f"broker 2: {refused[2]}" in said.output
    told = json.loads(ottla("cluster health --format json").output)
    assert (told["nodes_down"], told["why_down"]) == ([2], {"2": refused[2]})
    status = ottla("cluster status --bootstrap-server fake:1 --format json")
    assert status.exit_code == FAILURE
    assert [node["state"] for node in json.loads(status.output)["nodes"]] == ["running", "down", "running"]


def test_only_a_port_that_refuses_connections_tells_that_a_node_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        nodes = [
            NodeView(1, "127.0.0.1", listening.getsockname()[1], None),
            NodeView(2, "127.0.0.1", bound.getsockname()[1], None),
            NodeView(3, "a..name that cannot be", 9092, None),
        ]
        port = bound.getsockname()[1]
        assert refusing(nodes) == {
            2: f"registered, but does not answer: 127.0.0.1:{port} refuses connections",
        }


def test_health_exit_codes(fake: FakeCluster) -> None:
    assert ottla("cluster health").exit_code == 0
    del fake.live[3]
    result = ottla("cluster health --format json")
    assert result.exit_code == FAILURE
    assert json.loads(result.output) == {
        "healthy": False,
        "unhealthy_reasons": ["nodes_down", "under_replicated_partitions"],
        "controller": 1,
        "nodes": [1, 2, 3],
        "nodes_down": [3],
        "why_down": {},
        "leaderless_partitions": [],
        "under_replicated_partitions": ["orders-1"],
        "why_leaderless": {},
        "unreadable_nodes": {},
        "topics_without_id": [],
        "error": None,
    }


def test_exit_when_healthy_prints_changes_only(fake: FakeCluster) -> None:
    del fake.live[3]
    look = fake.cluster
    looks = 0

    def healing() -> object:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise AdminError("no broker answers")
        if looks == 5:
            fake.live[3] = None
        return look()

    fake.cluster = healing  # type: ignore[method-assign,assignment]
    result = ottla("cluster health --exit-when-healthy")
    assert result.exit_code == 0
    told = [line.split()[-1] for line in result.stdout.splitlines() if line.startswith("Healthy:")]
    assert told == ["false", "false", "false", "true"]  # down, unreachable, down, healthy
    assert result.stderr == "no broker answers\n"
    assert result.stdout.count("Nodes down:") == 3, "it is not known while nobody answers"


def test_a_cluster_that_is_created_meanwhile_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker run --detach` returns before `ottla cluster start` in the container has a run directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    assert ottla("cluster health").exit_code == FAILURE
    looks = [health_commands.look, lambda *_: assess(three_brokers().cluster(), {})]
    monkeypatch.setattr(health_commands, "look", lambda *options: looks.pop(0)(*options))
    result = ottla("cluster health --exit-when-healthy")
    assert result.exit_code == 0
    assert "no cluster given" in result.stderr
    assert not looks


def test_timeout(fake: FakeCluster) -> None:
    del fake.live[3]
    assert ottla("cluster health --exit-when-healthy --timeout 0").exit_code == FAILURE


@pytest.mark.parametrize(("variable", "is_healthy"), [(None, False), ("localhost:9092", True)])
def test_every_broker_of_the_run_directory_must_be_live(
    fake: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, is_healthy: bool
) -> None:
    """Also one that has no replica, as in a cluster that starts. The variable names another cluster."""
    monkeypatch.chdir(tmp_path)
    if variable is None:
        monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(BOOTSTRAP_VARIABLE, variable)
    for broker in (1, 2, 3, 4):
        directory = tmp_path / "ottla-cluster" / f"broker-{broker}"
        directory.mkdir(parents=True)
        (directory / "server.properties").write_text(
            f"broker.id={broker}\nlisteners=PLAINTEXT://localhost:909{broker}\n"
        )
    result = ottla("cluster health --format json")
    assert json.loads(result.stdout)["nodes_down"] == ([] if is_healthy else [4])
    assert (result.exit_code == 0) == is_healthy


def test_status_of_a_cluster_known_by_its_address(fake: FakeCluster) -> None:
    result = ottla("cluster status --bootstrap-server fake:1 --format json")
    assert result.exit_code == 0
    said = json.loads(result.output)
    assert [node["leaders"] for node in said["nodes"]] == [1, 1, 0]
    assert (said["partitions"], said["reassigning_partitions"]) == (2, 0)
    del fake.live[3]
    assert ottla("cluster status --bootstrap-server fake:1").exit_code == FAILURE
