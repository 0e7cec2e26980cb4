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
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla.records import id_finder
from tests.conftest import ClusterFactory
from tests.support.cli import COMMAND
from tests.support.invariants import eventually
from tests.support.real_kafka import skip_without_kafka
from tests.support.thorough import release, thorough
from tests.support.verified import EXACTLY_ONCE, EXAMPLES, ORDERS, faults, verify
from tools.admin.kafka_admin import KafkaAdmin
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.log_parts import events_of
from tools.group_protocols import CLASSIC, CONSUMER
from tools.judge.logs import Outcome
from tools.judge.reports import PRODUCED, Report
from tools.verify.reading import read_back

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize(
    ("protocol", "texts"),
    [
        (CONSUMER, ["kill leader of orders-0 at 3s", "restart it at 6s"]),
        thorough(CLASSIC, ["kill controller at 3s"]),
        thorough(CONSUMER, ["kill coordinator of billing at 5s"]),
    ],
    ids=["leader", "controller", "coordinator"],
)
def test_a_clean_client_has_no_findings(
    quick_cluster: LocalCluster, tmp_path: Path, protocol: str, texts: list[str]
) -> None:
    """Except that a busy machine may take longer to serve again than a run waits for. `protocol`: of the group of ottla's load."""
    page, junit = tmp_path / "report.html", tmp_path / "junit.xml"
    options = f"--topic orders:6 --seconds 12 --allow unrecovered --html {page} --junit {junit}".split()
    options += ["--group-protocol", protocol]
    had = groups_of_the_load(quick_cluster)
    verified = verify(quick_cluster, tmp_path, [*faults(*texts), *options], ORDERS)
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
    (group,) = groups_of_the_load(quick_cluster).items() - had.items()
    assert group[1] == (protocol == CONSUMER)


def groups_of_the_load(cluster: LocalCluster) -> dict[str, bool]:
    """Those that the load had, and whether they were of the new kind: only these are assigned by the broker."""
    rows = [
        row for broker in cluster.broker_ids for row in events_of(cluster.broker_directory(broker) / "events.jsonl")
    ]
    states: dict[str, set[str]] = {}
    for row in rows:
        if row["kind"] == "group_state" and row["group"].startswith("ottla-verify-readers-"):
            states.setdefault(row["group"], set()).add(row["after"])
    return {group: "Assigning" in seen for group, seen in states.items()}


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
    verified = verify(named, tmp_path, options, ORDERS, **environment)
    assert verified.exit_code == 0, verified.output
    assert {each["error"] for each in verified.found["faults"]} == {""}
    assert quick_cluster.problems() == {}, "everything is healed"
    assert not list((tmp_path / "state").rglob("*.json")), "nothing waits to be healed"


@pytest.mark.thorough
def test_acks_1_loses_what_only_the_leader_had(cluster: LocalCluster, orders: KafkaAdmin, tmp_path: Path) -> None:
    orders.create_topic("orders", replica_assignment=[[1, 2]])
    options = faults("pause broker 2 at 3s", "kill broker 1 at 6s", "resume broker 2 at 7s")
    verified = verify(cluster, tmp_path, [*options, "--no-load", "--seconds", "9"], [*ORDERS, "--acks", "1"])
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


EXACTLY_ONCE_OPTIONS = [
    *("--topic", "orders:4", "--topic", "invoices:4", "--no-load", "--seconds", "10", "--grace", "60"),
    *("--allow", "unrecovered"),
]


@pytest.fixture
def bills(quick_cluster: LocalCluster) -> None:
    """The topics and the group of an earlier test are deleted."""
    admin = KafkaAdmin(quick_cluster.bootstrap_servers)
    for topic in ("orders", "invoices"):
        admin.delete_topic(topic)
    eventually(lambda: not {"orders", "invoices"} & set(admin.cluster().topics), "the topics are deleted")


@pytest.mark.usefixtures("bills")
def test_transactions_of_a_clean_program_have_no_findings(quick_cluster: LocalCluster, tmp_path: Path) -> None:
    """It aborts some, and its readers do not get these records."""
    options = faults("kill leader of invoices-0 at 3s", "restart it at 5s") + EXACTLY_ONCE_OPTIONS
    verified = verify(quick_cluster, tmp_path, options, EXACTLY_ONCE)
    assert verified.exit_code == 0, verified.output
    (client,) = verified.found["clients"]
    assert client["reports"]["committed-txn"] > 10
    assert client["reports"]["aborted-txn"] > 0
    assert client["reports"]["consumed"] > 100


@pytest.mark.thorough
def test_recipes_make_a_report_card(tmp_path: Path) -> None:
    """Each runs the program anew, and its rules hit requests of it."""
    names = ("leader-moved", "lost-ack", "lost-commit", "half-an-answer")
    recipes = [text for name in names for text in ("--recipe", name)]
    file, junit = tmp_path / "card.json", tmp_path / "junit.xml"
    files = ["--json", str(file), "--junit", str(junit)]
    command = [*COMMAND, "verify", "run", "--topic", "orders:6", *recipes, *files, "--", *ORDERS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    card = [line.split() for line in done.stdout.partition("RECIPE ")[2].splitlines()[1:]]
    assert [row[0] for row in card] == list(names)
    assert all(row[-1] == "passed" for row in card)
    assert [row[1] != "0" for row in card] == [True] * len(names)
    found = json.loads(file.read_text())["recipes"]
    assert [(each["recipe"], each["verdict"]["verdict"]) for each in found] == [(name, "clean") for name in names]
    assert 'tests="4" failures="0" errors="0" skipped="0"' in junit.read_text()


@pytest.mark.thorough
@pytest.mark.usefixtures("bills")
@pytest.mark.parametrize(
    ("bug", "kinds"),
    [
        ("offsets-outside", {"unprocessed"}),
        ("uncommitted", {"aborted-read", "early-read"}),
        ("abort-as-commit", {"undone", "unprocessed"}),
        ("zombie", {"duplicates", "processed-twice"}),
    ],
)
def test_planted_bugs_of_transactions_are_found(
    quick_cluster: LocalCluster, tmp_path: Path, bug: str, kinds: set[str]
) -> None:
    """An offset that is taken for committed may also be missing in the end."""
    verified = verify(quick_cluster, tmp_path, EXACTLY_ONCE_OPTIONS, [*EXACTLY_ONCE, "--bug", bug])
    assert verified.exit_code == 1, verified.output
    assert verified.failures() - {"commits-back"} == kinds


def test_the_logs_say_how_transactions_ended_and_who_holds_one_open(quick_cluster: LocalCluster) -> None:
    servers, topic = quick_cluster.bootstrap_servers, "ended"
    KafkaAdmin(servers).create_topic(topic, partitions=1)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "holder", "log_level": 2})
    producer.init_transactions(30)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction, None)):
        producer.begin_transaction()
        producer.produce(topic, key=str(number))
        producer.flush(30)
        if end is not None:
            end(30)
    reports = [Report(PRODUCED, topic, id=str(number), txn=f"t{number}") for number in range(3)]
    logs, _, incomplete = read_back({"bootstrap.servers": servers}, reports, {}, id_finder("key"))
    assert incomplete == []
    log = logs[topic, 0]
    assert log.ids == {0: "0", 2: "1", 4: "2"}
    assert [log.outcome(offset) for offset in log.ids] == [Outcome.COMMITTED, Outcome.ABORTED, Outcome.OPEN]
    (holder,) = log.open
    assert (holder.transactional_id, holder.first_offset, holder.is_stuck) == ("holder", 4, False)
    assert holder.words == "Ongoing, its time-out is 60 s"
    producer.abort_transaction(30)


@pytest.mark.thorough
@pytest.mark.usefixtures("bills")
@pytest.mark.parametrize("arguments", [[], ["--bug"]], ids=["clean", "offsets-outside"])
def test_transactions_in_java(quick_cluster: LocalCluster, tmp_path: Path, arguments: list[str]) -> None:
    skip_without_kafka()
    if shutil.which("javac") is None:
        pytest.skip("no JDK: the example in Java was not run")
    classes, source = str(ROOT / ".kafka" / "libs" / "*"), str(EXAMPLES / "java" / "ExactlyOnce.java")
    verified = verify(quick_cluster, tmp_path, EXACTLY_ONCE_OPTIONS, ["java", "-cp", classes, source, *arguments])
    assert verified.exit_code == (1 if arguments else 0), verified.output
    assert verified.failures() == ({"unprocessed"} if arguments else set())
    assert verified.found["clients"][0]["reports"]["aborted-txn"] > 0


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
