"""Fixtures that all tests share, and the guard against processes that a test leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tools.cluster.ownership import own_servers

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from tests.support.cli import Cli
    from tests.support.invariants import ZooKeeperView
    from tests.support.kafka_tools import KafkaTools
    from tools.cluster.local_cluster import LocalCluster

START_TIMEOUT_S = 60.0
SHARED_KAFKA_SETTINGS = {
    "group.max.size": "2",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "2",
}
"""The settings of `shared_kafka`. test_conformance.py needs them; no other test depends on them."""
COROUTINE_LIMIT_S = 60.0
"""Nothing that a test awaits takes so long."""
END = float(os.environ.get("OTTLA_TESTS_END", "inf"))
"""Seconds since 1970. No test begins later: it is skipped, and the summary says so."""

# An example that takes long on a busy machine is no failure.
settings.register_profile("ottla", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
settings.load_profile("ottla")
own_servers()  # also when the tests are killed
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control lets its background processes ignore SIGINT. The commands that the tests interrupt would
    # inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ClusterFactory = Callable[..., "LocalCluster"]
OwnProperties = Callable[[int, Path], Mapping[str, str]]


@pytest.fixture(scope="session")
def new_chroot() -> Iterator[Callable[[], str]]:
    """Returns an unused chroot of one ZooKeeper each time: `host:port/chroot`."""
    from tests.support.zookeeper import ZooKeeperServer

    with contextlib.ExitStack() as stack:
        server = cache(lambda: stack.enter_context(ZooKeeperServer()))
        numbers = itertools.count(1)
        yield lambda: f"{server().connect}/cluster-{next(numbers)}"


@contextlib.contextmanager
def running_clusters(directory: Path, new_chroot: Callable[[], str | None] = lambda: None) -> Iterator[ClusterFactory]:
    """A factory of started clusters below `directory`, every one of which is destroyed at the end, whatever happens.

    The factory takes `LocalCluster.create`'s arguments and returns the cluster when it is ready to serve. `own_properties` are those of
    single brokers, of the broker's id and its directory. A cluster lives in a new chroot, unless it has links or its `zookeeper` is
    given; None: its own ZooKeeper.
    """
    from tools.cluster.local_cluster import LocalCluster

    with contextlib.ExitStack() as stack:
        count = 0

        def start(*, own_properties: OwnProperties = lambda broker, directory: {}, **settings: Any) -> LocalCluster:
            nonlocal count
            count += 1
            cluster = LocalCluster(directory / f"cluster-{count}")
            stack.callback(cluster.destroy)
            stack.callback(assert_no_own_error, cluster)
            if not settings.get("links"):
                settings.setdefault("zookeeper", new_chroot())
            cluster.create(**settings)
            for broker in cluster.broker_ids:
                home = cluster.broker_directory(broker)
                with (home / "server.properties").open("a", encoding="utf-8") as file:  # the last line of a key counts
                    file.writelines(f"{key}={value}\n" for key, value in own_properties(broker, home).items())
            cluster.start(timeout=START_TIMEOUT_S)
            cluster.wait_ready(timeout=START_TIMEOUT_S)
            return cluster

        yield start


def assert_no_own_error(cluster: LocalCluster) -> None:
    """No handler has raised what it should not: a client would see a connection that ends, and may hide it by trying again."""
    from broker.requests.steps import OWN_ERROR

    for log in sorted(cluster.directory.glob("broker-*/server.log")):
        before, found, after = log.read_text(encoding="utf-8", errors="replace").partition(OWN_ERROR)
        assert not found, f"{log.parent.name}: {before[-3000:]}{found}{after[:200]}"


CALM = {"zookeeper.session.timeout.ms": "30000"}
"""For clusters whose brokers nobody harms: a machine that stands still for seconds ends no session, and moves no leader."""


@pytest.fixture
def new_cluster(tmp_path: Path, new_chroot: Callable[[], str]) -> Iterator[ClusterFactory]:
    """`new_cluster(brokers=3, overrides={...})` starts a cluster of this test's own."""
    with running_clusters(tmp_path, new_chroot) as start:
        yield start


@pytest.fixture(scope="module")
def new_module_cluster(
    tmp_path_factory: pytest.TempPathFactory, new_chroot: Callable[[], str]
) -> Iterator[ClusterFactory]:
    """`new_cluster` for a cluster that all tests of a module share. The module's fixture `cluster` calls it."""
    with running_clusters(tmp_path_factory.mktemp("module-cluster"), new_chroot) as start:
        yield start


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    """Three brokers for all tests that harm none of them; each test makes topics of its own."""
    with running_clusters(tmp_path_factory.mktemp("shared-cluster"), new_chroot) as start:
        yield start(brokers=3, overrides=CALM)


@pytest.fixture(scope="module")
def broker_at_level_3_9(new_module_cluster: ClusterFactory) -> LocalCluster:
    """A cluster of one broker, for what only old clients ask for."""
    return new_module_cluster(brokers=1, overrides={**CALM, "broker.api.level": "3.9"})


@pytest.fixture
def zk(cluster: LocalCluster) -> Iterator[ZooKeeperView]:
    """What is in the ZooKeeper of the module's fixture `cluster`."""
    from tests.support.invariants import ZooKeeperView

    view = ZooKeeperView.of(cluster)
    yield view
    view.close()


@pytest.fixture
def admin(cluster: LocalCluster) -> AdminClient:
    """A client of the module's fixture `cluster`."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


@pytest.fixture(scope="session")
def kafka_tools() -> KafkaTools:
    """The command line tools of a real Kafka."""
    from tests.support.kafka_tools import KafkaTools
    from tests.support.real_kafka import skip_without_kafka

    skip_without_kafka()
    return KafkaTools()


@pytest.fixture(scope="session")
def shared_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A real Kafka of three brokers for all tests that harm none of them; each test uses topics and groups of its own."""
    from tests.support.real_kafka import running_kafka, skip_without_kafka

    skip_without_kafka()
    with running_kafka(tmp_path_factory.mktemp("shared-kafka"), overrides=SHARED_KAFKA_SETTINGS) as cli:
        yield cli


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a real Kafka or Docker, or have the marker `release`, do not run in `make test`."""
    for item in items:
        if {"kafka_tools", "shared_kafka"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kafka)
        if any(item.get_closest_marker(name) for name in ("kafka", "compose", "release")):
            item.add_marker(pytest.mark.thorough)


@pytest.hookimpl(tryfirst=True)  # before fixtures start anything
def pytest_runtest_setup() -> None:
    if time.time() > END:
        pytest.skip("OUT OF TIME: it would begin after OTTLA_TESTS_END")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine: in the loop of `runner`, if a fixture of the test uses it, else in a loop of its own,
    which the fixture `new_loop` may make.

    A fixture that is an asynchronous context manager is entered before the test.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def play() -> None:
        async with asyncio.timeout(COROUTINE_LIMIT_S), contextlib.AsyncExitStack() as stack:
            arguments: dict[str, Any] = {}
            for name in pyfuncitem._fixtureinfo.argnames:
                value = pyfuncitem.funcargs[name]
                is_entered = hasattr(value, "__aenter__")
                arguments[name] = await stack.enter_async_context(value) if is_entered else value
            await pyfuncitem.obj(**arguments)

    if "runner" in pyfuncitem.funcargs:
        pyfuncitem.funcargs["runner"].run(play())
        return True
    with asyncio.Runner(loop_factory=pyfuncitem.funcargs.get("new_loop")) as own_runner:
        own_runner.run(play())
    return True


@pytest.hookimpl(trylast=True)  # after the fixtures of the session have cleaned up
def pytest_sessionfinish(session: pytest.Session) -> None:
    """If a broker or ZooKeeper of a test still runs, ends it and fails the run."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    if factory is None or not Path("/proc").is_dir():
        return
    leftovers = processes_below(factory.getbasetemp())
    if not leftovers:
        return
    report = session.config.get_terminal_writer()
    report.line()
    for pid, command in leftovers.items():
        report.line(f"LEFT RUNNING by a test, ended now: process {pid}: {command}", red=True, bold=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED


def processes_below(directory: Path) -> dict[int, str]:
    """Pid -> command line of the other processes that name a path below `directory`, and of servers that run in one."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if {"broker", "./zoo.cfg"} & {*arguments}:
                arguments.append(f"{os.readlink(entry / 'cwd')}/")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or another user's
        if any(f"{directory}/" in argument for argument in arguments):
            found[int(entry.name)] = " ".join(arguments).strip()
    return found
