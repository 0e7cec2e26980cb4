"""The matrix of clients and features: three brokers for all of it, and what came of each cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from protocol.kafka.api_keys import ApiLevel
from tests.clients import results
from tests.clients.cell import Cell, closing
from tests.clients.clients import AT_LEVEL_4, SECURED_FEATURES, Client
from tests.clients.disaster import Disaster
from tests.clients.program import Unsupported
from tests.clients.secured import Secured, secured_cluster
from tests.conftest import running_clusters
from tests.support.invariants import eventually
from tools.cluster.local_cluster import LocalCluster

KILLED = {"exactly once": 1, "failover": 1}
"""Feature -> the broker that is killed once all clients are ready for it."""
SIDE_BY_SIDE = 4
API_LEVEL = "broker.api.level"
OVERRIDES = {
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
}

Outcome = BaseException | str
"""Why the cell failed or is unsupported; or a note to a passed one."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nothing of this directory runs in `make test`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.thorough)


class Matrix:
    """Plays a feature with all selected clients when the first cell of the feature is asked for."""

    def __init__(
        self,
        cluster: LocalCluster,
        secured: Callable[[], Secured],
        at_level_4: Callable[[], LocalCluster],
        directory: Path,
        selected: dict[str, list[Client]],
    ) -> None:
        """`secured` and `at_level_4` start other clusters, if this run has a cell that needs them."""
        self._cluster = cluster
        self._at_level_4 = at_level_4
        self._secured = secured
        self._directory = directory
        self._selected = selected
        self._outcomes: dict[tuple[str, Client], Outcome] = {}

    def report(self, feature: str, client: Client, play: Callable[[Cell], None]) -> None:
        """Fails or skips the test of the cell, as it should, and records the result."""
        reason = client.why_not()
        if reason is not None:
            self._record(feature, client, results.SKIPPED, reason)
            pytest.skip(f"{client.name}: {reason}")
        if (feature, client) not in self._outcomes:
            self._play(feature, play)
        outcome = self._outcomes[feature, client]
        if isinstance(outcome, Unsupported):
            self._record(feature, client, results.UNSUPPORTED, str(outcome))
            assert feature in client.lacks, f"{client.name} should have {feature}, but says: {outcome}"
        elif isinstance(outcome, BaseException):
            self._record(feature, client, results.FAILED, str(outcome) or type(outcome).__name__)
            raise outcome
        else:
            self._record(feature, client, results.PASSED, outcome)
            assert feature not in client.lacks, f"{client.name} has {feature}: take it out of `lacks`"

    def _play(self, feature: str, play: Callable[[Cell], None]) -> None:
        selected = self._selected[feature]
        with ThreadPoolExecutor(len(selected)) as pool:  # builds what is not built yet, all languages at a time
            reasons = list(pool.map(Client.why_not, selected))
        clients = [client for client, reason in zip(selected, reasons, strict=True) if reason is None]
        killed = KILLED.get(feature)
        disaster = Disaster(len(clients), lambda: self._cluster.kill(killed)) if killed is not None else None

        secured = self._secured() if feature in SECURED_FEATURES else None
        cluster = self._cluster if secured is None else secured.cluster
        if feature == AT_LEVEL_4:
            cluster = self._at_level_4()

        def outcome_of(client: Client) -> Outcome:
            cell = Cell(feature, client, cluster, self._directory, disaster, secured)
            try:
                with closing(cell):
                    play(cell)
            except BaseException as problem:  # noqa: BLE001 - pytest's failures, too; `report` raises it
                return problem
            return cell.note

        with ThreadPoolExecutor(len(clients) if disaster is not None else SIDE_BY_SIDE) as pool:
            outcomes = list(pool.map(outcome_of, clients))
        self._outcomes |= {(feature, client): outcome for client, outcome in zip(clients, outcomes, strict=True)}
        if killed is not None and self._cluster.pid(killed) is None:
            self._cluster.restart_broker(killed)
            eventually(lambda: is_in_sync(self._cluster), "all replicas are in sync after the restart")

    def _record(self, feature: str, client: Client, result: str, reason: str) -> None:
        version = "" if result == results.SKIPPED else client.version()
        results.record(
            results.CLIENTS,
            client.name,
            language=client.language,
            version=version,
            feature=feature,
            result=result,
            reason=reason,
        )


def is_in_sync(cluster: LocalCluster) -> bool:
    metadata = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2}).list_topics(timeout=30)
    partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
    return all(len(partition.isrs) == len(partition.replicas) for partition in partitions)


def selected_cells(items: Sequence[pytest.Item]) -> dict[str, list[Client]]:
    """Feature -> the clients that this run tests it with."""
    found: dict[str, list[Client]] = {}
    for item in items:
        values = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if "matrix" in getattr(item, "fixturenames", ()):
            found.setdefault(values["feature"], []).append(values["client"])
    return found


@pytest.fixture(scope="session")
def clients_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers. A test that kills one starts it again."""
    with running_clusters(tmp_path_factory.mktemp("clients")) as start:
        yield start(brokers=3, overrides={**OVERRIDES, API_LEVEL: results.API_LEVEL})


@pytest.fixture(scope="session")
def cluster_at_level_3_9(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_clusters(tmp_path_factory.mktemp("clients-3.9")) as start:
        yield start(brokers=3, overrides={**OVERRIDES, API_LEVEL: ApiLevel.KAFKA_3_9.value})


@pytest.fixture(scope="session")
def cluster_at_level_4(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """That of all clients, if it is at this level."""
    if ApiLevel(results.API_LEVEL) is ApiLevel.KAFKA_4:
        yield request.getfixturevalue("clients_cluster")
        return
    with running_clusters(tmp_path_factory.mktemp("clients-4")) as start:
        yield start(brokers=3, overrides={**OVERRIDES, API_LEVEL: ApiLevel.KAFKA_4.value})


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture(scope="session")
def matrix(
    request: pytest.FixtureRequest, clients_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Matrix:
    directory = tmp_path_factory.mktemp("programs")
    cells = selected_cells(request.session.items)
    return Matrix(
        clients_cluster,
        lambda: request.getfixturevalue("secured"),
        lambda: request.getfixturevalue("cluster_at_level_4"),
        directory,
        cells,
    )
