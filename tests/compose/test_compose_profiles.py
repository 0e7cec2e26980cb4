"""The profiles of docker-compose.yml: the tools, Prometheus, the console, and the ports."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.support.compose_project import BUILD_TIMEOUT_S, ComposeProject, run
from tests.support.invariants import eventually
from tools.cli import SUBCOMMANDS

# The images are built in the time of the fixture.
pytestmark = [pytest.mark.compose, pytest.mark.timeout(1500)]
INNER = "kafka1:19091,kafka2:19092,kafka3:19093"


def tools(project: ComposeProject, *arguments: str) -> str:
    return project.compose("run", "--rm", "-T", "tools", *arguments, timeout_s=180)


def test_ottla_in_a_container(project: ComposeProject) -> None:
    """It finds the brokers by itself, judges a load, and reads the brokers' files, which it cannot change."""
    assert isinstance(json.loads(tools(project, "topic", "list", "--format", "json")), list)
    verdict = tools(project, "verify", "run", "--bootstrap-server", INNER, "--seconds", "4")
    assert "PASSED  clean: 0 findings" in verdict
    logs = [f"/brokers/broker-{number}" for number in (1, 2, 3)]
    told = tools(project, "timeline", *logs, "--all", "--format", "json").splitlines()
    assert {json.loads(line)["broker"] for line in told} >= {1, 2, 3}
    assert "bounce" in tools(project, "fault", "run", "--random", "--kinds", "list")
    entry = ("run", "--rm", "-T", "--entrypoint", "bash", "tools", "-c")
    refused = "touch /brokers/broker-1/x 2>/dev/null && echo written || echo refused"
    assert project.compose(*entry, refused).strip() == "refused"
    assert project.compose(*entry, 'echo "$BOOTSTRAP_SERVERS"').strip() == INNER


def test_prometheus_reads_all_brokers_and_has_the_alerts(project: ComposeProject) -> None:
    project.compose("--profile", "metrics", "build", "prometheus", timeout_s=BUILD_TIMEOUT_S)
    project.compose("--profile", "metrics", "up", "--detach", "--no-deps", "prometheus", timeout_s=300)
    address = f"http://127.0.0.1:{project.ports['OTTLA_PROMETHEUS_PORT']}/api/v1"

    def asked(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"{address}/{path}", timeout=5) as answer:
                return json.load(answer)["data"]
        except (OSError, ValueError):
            return {}

    def up() -> dict[str, str]:
        found = asked("query?query=up").get("result", [])
        return {row["metric"]["instance"]: row["value"][1] for row in found}

    eventually(lambda: up() == dict.fromkeys((f"kafka{n}:9404" for n in (1, 2, 3)), "1"), "three brokers up")
    rules = {rule["name"] for group in asked("rules")["groups"] for rule in group["rules"]}
    assert {"BrokerDown", "OfflinePartitions"} <= rules
    (found,) = json.loads(run(["docker", "inspect", project.container("prometheus")]))
    assert found["HostConfig"]["ReadonlyRootfs"]
    assert found["Config"]["User"] not in ("", "root", "0")
    project.compose("--profile", "metrics", "rm", "--stop", "--force", "prometheus")


def test_the_console_needs_its_token(project: ComposeProject) -> None:
    if "console" not in SUBCOMMANDS:
        pytest.skip("NOT TESTED: this ottla has no console yet")
    project.compose("--profile", "console", "up", "--detach", "--no-deps", "console", timeout_s=300)
    address = f"http://127.0.0.1:{project.ports['OTTLA_CONSOLE_PORT']}/"
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # the token becomes a cookie

    def status(path: str) -> int:
        try:
            with browser.open(address + path, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as problem:
            return problem.code
        except OSError:
            return 0

    eventually(lambda: status("") != 0, "the console answers")
    assert status("") in (401, 403)
    printed = re.search(r"https?://\S+/(\S*token=\S+)", project.compose("logs", "--no-color", "console"))
    assert printed is not None
    assert status(printed[1]) == 200
    project.compose("--profile", "console", "rm", "--stop", "--force", "console")


def test_only_loopback_ports_are_published(project: ComposeProject) -> None:
    published = {}
    for service in project.services:
        (found,) = json.loads(run(["docker", "inspect", project.container(service)]))
        for inner, outer in (found["NetworkSettings"]["Ports"] or {}).items():
            published[service, inner] = [binding["HostIp"] for binding in outer or ()]
    assert {key: hosts for key, hosts in published.items() if hosts} == {
        ("zookeeper", "2181/tcp"): ["127.0.0.1"],
        ("kafka1", "9092/tcp"): ["127.0.0.1"],
        ("kafka2", "9093/tcp"): ["127.0.0.1"],
        ("kafka3", "9094/tcp"): ["127.0.0.1"],
    }
