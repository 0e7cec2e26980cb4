"""The pytest plugin: a cluster for a test run, and what a test does with it (docs/TESTING.md).

A run has one cluster, which starts when the first test wants it. With pytest-xdist each worker has its own: a fault in one test must not
reach the tests of the others.
"""

from __future__ import annotations

import contextlib
import re
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from itertools import count
from typing import Any

import pytest

from ottla.cluster import Fault, OttlaCluster
from ottla.owner_process import OttlaError
from ottla.verdict import Verdict

RUNNING = pytest.StashKey[OttlaCluster]()
VERDICT = pytest.StashKey[Verdict]()
BEGAN_S = pytest.StashKey[float]()
_topic_numbers = count(1)
TOPIC_NAME_MAX = 100
NOT_IN_TOPIC_NAMES = re.compile(r"[^a-zA-Z0-9-]+")
MARKERS = (
    "ottla_topic(partitions=1, replication_factor=None, configs={}): how the fixture ottla_topic makes its topic",
    "ottla_verdict(id=None, allow=(), forbid=(), finished=False): how the fixture ottla_verdict judges",
)


class OttlaWarning(pytest.PytestWarning):
    """Something of a test is left in the cluster."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ottla", "a cluster of brokers for tests")
    group.addoption("--ottla-brokers", type=int, metavar="N", help="number of brokers (ini: ottla_brokers, default 3)")
    group.addoption(
        "--ottla-setting",
        action="append",
        metavar="KEY=VALUE",
        help="a setting of every broker; may be repeated (ini: ottla_settings, a line for each)",
    )
    group.addoption(
        "--ottla-api-level",
        metavar="LEVEL",
        help="3.9 or 4: whose APIs clients get, those of Kafka 3.9 or of Kafka 4 (ini: ottla_api_level, default 4)",
    )
    group.addoption(
        "--ottla-links",
        action="store_true",
        default=None,
        help="connect the brokers through links that can be cut (ini: ottla_links)",
    )
    group.addoption("--no-ottla-links", action="store_false", dest="ottla_links", help="without such links")
    group.addoption(
        "--ottla-secure",
        action="store_true",
        default=None,
        help="with TLS, users who log in, and ACLs (ini: ottla_secure)",
    )
    group.addoption("--no-ottla-secure", action="store_false", dest="ottla_secure", help="without")
    group.addoption("--ottla-keep", metavar="DIR", help="keep the cluster's logs and data in DIR (ini: ottla_keep)")
    parser.addini("ottla_brokers", "number of brokers", default="3")
    parser.addini("ottla_settings", "settings of every broker, KEY=VALUE, a line for each", type="linelist", default=[])
    parser.addini("ottla_api_level", "whose APIs clients get, those of Kafka 3.9 or of Kafka 4", default="")
    parser.addini("ottla_links", "connect the brokers through links that can be cut", type="bool", default=False)
    parser.addini("ottla_secure", "with TLS, users who log in, and ACLs", type="bool", default=False)
    parser.addini("ottla_keep", "keep the cluster's logs and data in this directory", default="")


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def cluster_of(config: pytest.Config) -> OttlaCluster:
    """The cluster that ini file and command line describe, not started. Raises UsageError."""
    brokers = config.getoption("ottla_brokers")
    text = str(config.getini("ottla_brokers")) if brokers is None else str(brokers)
    if not text.strip().isdecimal() or int(text) < 1:
        raise pytest.UsageError(f"ottla_brokers: {text!r} is not a number from 1")
    links = config.getoption("ottla_links")
    secure = config.getoption("ottla_secure")
    keep = config.getoption("ottla_keep") or config.getini("ottla_keep")
    return OttlaCluster(
        int(text),
        settings=settings_of([*config.getini("ottla_settings"), *(config.getoption("ottla_setting") or ())]),
        api_level=config.getoption("ottla_api_level") or config.getini("ottla_api_level") or None,
        links=bool(config.getini("ottla_links")) if links is None else links,
        secure=bool(config.getini("ottla_secure")) if secure is None else secure,
        keep=config.rootpath / keep / worker_of(config) if keep else None,
    )


def settings_of(lines: list[str]) -> dict[str, str]:
    """`key=value` lines, of which the last one of a key counts. Raises UsageError."""
    settings = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise pytest.UsageError(f"ottla_settings: {line!r} is not KEY=VALUE, such as message.max.bytes=2000000")
        settings[key.strip()] = value.strip()
    return settings


def worker_of(config: pytest.Config) -> str:
    """`gw0` and so on with pytest-xdist; empty without."""
    return str(getattr(config, "workerinput", {}).get("workerid", ""))


@pytest.fixture(scope="session")
def ottla_cluster(request: pytest.FixtureRequest) -> Iterator[OttlaCluster]:
    """The cluster of the run: an OttlaCluster, which is healed and emptied after each test."""
    config = request.config
    with contextlib.ExitStack() as stack:
        failure = ""
        try:
            cluster = stack.enter_context(cluster_of(config))
        except OttlaError as problem:
            failure = f"the cluster does not start: {problem}"
        if failure:  # out of the block above, so that the line is printed once
            pytest.fail(failure, pytrace=False)
        config.stash[RUNNING] = cluster
        try:
            yield cluster
        finally:
            del config.stash[RUNNING]


@pytest.fixture
def ottla_topic(request: pytest.FixtureRequest, ottla_cluster: OttlaCluster) -> str:
    """The name of a new topic of this test. `@pytest.mark.ottla_topic(partitions=3)` says what it is like."""
    options = _options(request, "ottla_topic")
    number = next(_topic_numbers)
    worker = worker_of(request.config)
    name = NOT_IN_TOPIC_NAMES.sub("-", request.node.name).strip("-")[:TOPIC_NAME_MAX]
    return ottla_cluster.create_topic("-".join(filter(None, (name, worker, str(number)))), **options)


@pytest.fixture
def ottla_faults(ottla_cluster: OttlaCluster) -> Callable[[str], Fault]:
    """`ottla_faults("kill leader of orders-0")`: a fault in the words of docs/FAULTS.md, healed after the test at the latest."""
    return ottla_cluster.fault


@pytest.fixture
def ottla_verdict(request: pytest.FixtureRequest, ottla_cluster: OttlaCluster) -> Verdict:
    """A Verdict. The test fails if records are lost, doubled, out of order, ...: at its end, unless it calls `check` itself."""
    options = _options(request, "ottla_verdict")
    options.pop("finished", None)
    verdict = Verdict(ottla_cluster, **options)
    request.node.stash[VERDICT] = verdict
    return verdict


@pytest.fixture(autouse=True)
def _ottla_is_empty_again(request: pytest.FixtureRequest) -> Iterator[None]:
    """Before the other fixtures of a test: notes what is there. After them: heals, and deletes what was not there before.

    Topics of fixtures with a wider scope are there before, and stay.
    """
    if "ottla_cluster" in request.fixturenames:
        request.getfixturevalue("ottla_cluster").keep_contents()
        request.node.stash[BEGAN_S] = time.time()
    yield
    cluster = request.config.stash.get(RUNNING, None)
    if cluster is None or "ottla_cluster" not in request.fixturenames:
        return
    try:
        problems = cluster.clear()
    except OttlaError as problem:
        cluster.close()
        cluster.start()
        problems = [f"the cluster was replaced by a new one, because it could not be healed: {problem}"]
    for left in problems:
        warnings.warn(OttlaWarning(f"{request.node.nodeid}: {left}"), stacklevel=1)


def _options(request: pytest.FixtureRequest, marker: str) -> dict[str, Any]:
    """The keyword arguments of the closest marker. Raises UsageError for others."""
    found = request.node.get_closest_marker(marker)
    if found is None:
        return {}
    if found.args:
        raise pytest.UsageError(f"@pytest.mark.{marker} takes keyword arguments only, such as partitions=3")
    return dict(found.kwargs)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """The verdict belongs to the test, so that the test fails and not its teardown."""
    result = yield
    verdict = item.stash.get(VERDICT, None)
    if verdict is not None and not verdict.is_checked:
        marker = item.get_closest_marker("ottla_verdict")
        judged = verdict.judge(finished=bool(marker and marker.kwargs.get("finished")))
        if not judged.passed:
            pytest.fail(judged.text, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows what happened in the cluster meanwhile."""
    report = yield
    began_s = item.stash.get(BEGAN_S, None)
    cluster = item.config.stash.get(RUNNING, None)
    if report.when == "call" and report.failed and began_s is not None and cluster is not None:
        try:
            story = cluster.timeline(began_s)
        except OttlaError as problem:
            story = f"not known: {problem}"
        if story:
            report.sections.append(("ottla timeline of this test", story))
    return report
