"""`ottla verify run` with real brokers: clean clients have no findings, and what brokers or programs lose is found.

The losses are sure to happen: the only replicas are brokers 1 and 2, and the one that lags is the only one that can lead.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ClusterFactory
from tests.support.cli import COMMAND
from tests.support.invariants import eventually
from tests.support.real_kafka import skip_without_kafka
from tests.support.thorough import release, thorough
from tools.admin.kafka_admin import KafkaAdmin
from tools.cluster.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PYTHON = (sys.executable, str(EXAMPLES / "python" / "orders.py"))
SETTINGS = {"zookeeper.session.timeout.ms": "20000", "replica.lag.time.max.ms": "60000"}
"""A paused follower stays in the ISR."""


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3, overrides=SETTINGS)


@pytest.fixture(scope="module")
def quick_cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    """With the short time-outs of a local cluster."""
    return new_module_cluster(brokers=3)


@pytest.fixture
def orders(cluster: LocalCluster) -> KafkaAdmin:
    """An admin client, after the topics of earlier tests are deleted."""
    admin = KafkaAdmin(cluster.bootstrap_servers)
    for topic in ("orders", "payments"):
        admin.delete_topic(topic)
    eventually(lambda: not {"orders", "payments"} & set(admin.cluster().topics), "the topics are deleted")
    return admin


class Verified:
    def __init__(self, exit_code: int, output: str, found: dict[str, Any]) -> None:
        self.exit_code = exit_code
        self.output = output
        self.found = found

    def count(self, kind: str, client: str = "your program") -> int:
        return sum(each["count"] for each in self.found["findings"] if (each["kind"], each["client"]) == (kind, client))

    def failures(self) -> set[str]:
        return {each["kind"] for each in self.found["findings"] if each["is_failure"]}


def verify(
    cluster: LocalCluster | Sequence[str],
    directory: Path,
    options: Sequence[str],
    program: Sequence[str],
    **env: str,
) -> Verified:
    """`cluster`: or the options that name one."""
    file = directory / "verdict.json"
    named = ["--dir", str(cluster.directory)] if isinstance(cluster, LocalCluster) else cluster
    command = [*COMMAND, "verify", "run", *named, "--json", str(file), *options, "--", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env={**os.environ, **env})
    print(done.stdout, done.stderr)
    return Verified(done.returncode, done.stdout, json.loads(file.read_text()))


def faults(*texts: str) -> list[str]:
    return [word for text in texts for word in ("--fault", text)]


@pytest.mark.parametrize(
    "texts",
    [
        ["kill leader of orders-0 at 3s", "restart it at 6s"],
        thorough(["kill controller at 3s"]),
        thorough(["kill coordinator of billing at 5s"]),
    ],
    ids=["leader", "controller", "coordinator"],
)
def test_a_clean_client_has_no_findings(quick_cluster: LocalCluster, tmp_path: Path, texts: list[str]) -> None:
    """Except that a busy machine may take longer to serve again than a run waits for."""
    page, junit = tmp_path / "report.html", tmp_path / "junit.xml"
    options = f"--topic orders:6 --seconds 12 --allow unrecovered --html {page} --junit {junit}".split()
    verified = verify(quick_cluster, tmp_path, [*faults(*texts), *options], PYTHON)
    assert verified.exit_code == 0, verified.output
    assert verified.failures() == set()
    assert {each["error"] for each in verified.found["faults"]} == {""}
    assert {each["name"] for each in verified.found["clients"]} == {"your program", "ottla's load"}
    for client in verified.found["clients"]:
        assert client["reports"]["acked"] > 100
        assert client["reports"]["consumed"] > 100
        assert client["reports"]["committed"] > 0
    assert "clean: 0 findings" in page.read_text()
    assert 'failures="0"' in junit.read_text()
    topics = KafkaAdmin(quick_cluster.bootstrap_servers).cluster().topics
    assert not [name for name in topics if name.startswith("ottla-verify-")], "the load's topic is removed"


HARM = """#!{python}
import sys
from tools.cluster.local_cluster import LocalCluster
action, broker, host, port = sys.argv[1:]
cluster = LocalCluster("{directory}")
assert cluster.address(int(broker)) == f"{{host}}:{{port}}"
if action == "start":
    cluster.start_broker(int(broker))
else:
    getattr(cluster, action)(int(broker))
"""


@pytest.mark.thorough
def test_faults_by_a_program_of_the_user(quick_cluster: LocalCluster, tmp_path: Path) -> None:
    """`--fault-command`: the cluster is known by its address only, and the program is asked for each fault and each undo."""
    harm = tmp_path / "harm"
    harm.write_text(HARM.format(python=sys.executable, directory=quick_cluster.directory))
    harm.chmod(0o755)
    named = ["--bootstrap-server", quick_cluster.bootstrap_servers, "--fault-command", str(harm)]
    options = faults("kill leader of orders-0 for 2s at 3s", "pause follower of orders-0 for 1s at 8s")
    options += ["--seconds", "13", "--topic", "orders:6", "--allow", "unrecovered"]
    environment = {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")}
    verified = verify(named, tmp_path, options, PYTHON, **environment)
    assert verified.exit_code == 0, verified.output
    assert {each["error"] for each in verified.found["faults"]} == {""}
    assert quick_cluster.problems() == {}, "everything is healed"
    assert not list((tmp_path / "state").rglob("*.json")), "nothing waits to be healed"


@pytest.mark.thorough
def test_acks_1_loses_what_only_the_leader_had(cluster: LocalCluster, orders: KafkaAdmin, tmp_path: Path) -> None:
    orders.create_topic("orders", replica_assignment=[[1, 2]])
    options = faults("pause broker 2 at 3s", "kill broker 1 at 6s", "resume broker 2 at 7s")
    verified = verify(cluster, tmp_path, [*options, "--no-load", "--seconds", "9"], [*PYTHON, "--acks", "1"])
    assert verified.exit_code == 1
    assert verified.count("lost") > 10
    (evidence,) = [each["evidence"][0] for each in verified.found["findings"] if each["kind"] == "lost"]
    assert (evidence["topic"], evidence["partition"]) == ("orders", 0)
    assert evidence["id"].startswith("order-")
    assert int(evidence["line"]) > 0
    killed = next(each for each in verified.found["faults"] if each["verb"] == "kill")
    assert killed["findings"]["lost"] > 0, "they fall to the kill, not to the pause"
    assert "lost" in verified.output.split("FAILED")[1].splitlines()[0]


@pytest.mark.thorough
def test_commits_before_processing_are_found(cluster: LocalCluster, orders: KafkaAdmin, tmp_path: Path) -> None:
    program = (sys.executable, str(EXAMPLES / "python" / "commits_before_processing.py"))
    verified = verify(cluster, tmp_path, ["--topic", "payments:1", "--no-load", "--seconds", "60"], program)
    assert verified.exit_code == 1
    assert verified.failures() == {"unseen", "commits-ahead"}
    assert verified.count("unseen") > 0


@pytest.mark.thorough
@pytest.mark.parametrize("language", ["java", release("go"), release("node")])
def test_examples_in_other_languages(quick_cluster: LocalCluster, tmp_path: Path, language: str) -> None:
    program, environment = {"java": java, "go": go, "node": node}[language](tmp_path)
    options = faults("kill leader of orders-0 at 8s", "restart it at 11s", "kill coordinator of billing at 15s")
    options += ["--topic", "orders:6", "--no-load", "--seconds", "18", "--grace", "30", "--allow", "unrecovered"]
    verified = verify(quick_cluster, tmp_path, options, program, **environment)
    assert verified.exit_code == 0, verified.output
    (client,) = verified.found["clients"]
    assert client["reports"]["acked"] > 100
    assert client["reports"]["consumed"] > 100
    assert client["reports"]["committed"] > 0


def java(_: Path) -> tuple[list[str], dict[str, str]]:
    skip_without_kafka()
    if shutil.which("javac") is None:
        pytest.skip("no JDK: the example in Java was not run")
    return ["java", "-cp", str(ROOT / ".kafka" / "libs" / "*"), str(EXAMPLES / "java" / "Orders.java")], {}


def go(directory: Path) -> tuple[list[str], dict[str, str]]:
    if shutil.which("go") is None:
        pytest.skip("no go: the example in Go was not run")
    if subprocess.run(["go", "mod", "download"], cwd=EXAMPLES / "go", check=False).returncode != 0:
        pytest.skip("go cannot fetch franz-go: the example in Go was not run")
    subprocess.run(["go", "build", "-o", str(directory / "orders"), "."], cwd=EXAMPLES / "go", check=True)
    return [str(directory / "orders")], {}


def node(directory: Path) -> tuple[list[str], dict[str, str]]:
    if shutil.which("npm") is None:
        pytest.skip("no npm: the example in Node was not run")
    shutil.copy(EXAMPLES / "node" / "package.json", directory)
    if subprocess.run(["npm", "install", "--prefix", str(directory)], check=False).returncode != 0:
        pytest.skip("npm cannot fetch kafkajs: the example in Node was not run")
    return ["node", str(EXAMPLES / "node" / "orders.js")], {"NODE_PATH": str(directory / "node_modules")}


def test_ctrl_c_stops_the_program_and_still_judges(tmp_path: Path) -> None:
    """With a cluster of its own, and a program that reports nothing: ottla's load is judged."""
    mine = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*COMMAND, "verify", "run", "--seconds", "200", "--", "sh", "-c", "echo here I am; exec sleep 300"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=mine, start_new_session=True
    ) as process:
        assert process.stdout is not None
        guard = threading.Timer(200, process.kill)
        guard.start()
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip())
            if lines[-1] == "here I am":
                process.send_signal(signal.SIGINT)
        exit_code = process.wait()
        guard.cancel()
    output = "\n".join(lines)
    assert exit_code == 0, output
    assert "PASSED  clean: 0 findings" in output
    assert "your program reported nothing: only the cluster is judged" in output
    assert list(tmp_path.iterdir()) == [], "what was started is removed"
