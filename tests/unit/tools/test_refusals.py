"""What commands refuse: with exit code 2 before a request to a broker, or with 1, in one line, before any change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import ottla
from tests.support.fake_admin import FakeCluster

RESET = "group reset-offsets g --topic t"
ORDERS = "--entity-type topics --entity-name orders"

TYPED_WRONGLY = [
    ("bench compare --json nowhere/x", "there is no directory nowhere"),
    ("bench compare --svg .", "is a directory"),
    ("bench profile --out nowhere/x", "there is no directory nowhere"),
    ("inspect conformance --json nowhere/x", "there is no directory nowhere"),
    ("sim hunt --out nowhere/x", "there is no directory nowhere"),
    ("timeline --html nowhere/x", "there is no directory nowhere"),
    ("bench controller --partitions 0", "whole numbers of at least 1"),
    ("bench controller --partitions 1000,x", "whole numbers of at least 1"),
    ("bench controller --brokers 2 --replication-factor 3", "3 replicas need at least as many brokers, found 2"),
    ("cluster health --timeout 1", "--timeout is for --watch and --exit-when-healthy"),
    ("config describe --entity-type topics --entity-default", "--entity-default is only for brokers"),
    ("config describe --entity-type brokers --entity-name x", "'x' is not a broker id"),
    ("config alter --entity-type brokers --add-config a=1", "--entity-name or --entity-default"),
    (f"config alter {ORDERS}", "nothing to change"),
    (f"config alter {ORDERS} --add-config a", "KEY=VALUE"),
    ("config alter --entity-type brokers --entity-name 1 --entity-default --add-config a=1", "cannot be used together"),
    ("consume", "missing topic name"),
    ("consume t --format %z", "unknown token '%z'"),
    ("consume t --offset soon", "expected an offset, -N for the last N records"),
    ("consume t --offset @1969-12-31", "'1969-12-31' is before 1970."),
    ("consume t --offset 1 --from-beginning", "cannot be used together"),
    ("consume t --group g --partition 1", "set its offsets with `ottla group reset-offsets`"),
    ("consume t --group g --offset 1", "--group starts at the group's committed offsets"),
    ("consume t --group ''", "--group must not be empty"),
    ("demo --command-config f", "--command-config needs --bootstrap-server"),
    ("elect --election-type preferred", "use one of"),
    ("elect --election-type preferred --all-topic-partitions --path-to-json-file -", "use one of"),
    ("elect --election-type preferred --topic orders", "--topic and --partition must be used together"),
    ("elect --election-type preferred --partition 0", "--topic and --partition must be used together"),
    ("fault run", "give a scenario file or --random"),
    ("fault run s.yaml --random", "give a scenario file or --random"),
    ("fault run s.yaml --seed 7", "are for --random"),
    ("fault kill broker 1 --dir d --compose p", "name a cluster each"),
    ("fault kill broker 1 --bootstrap-server a:1", "--bootstrap-server is for --fault-command"),
    ("fault kill broker 1 --bootstrap-server a:1 --fault-command x --links l", "--links and --bootstrap-server name"),
    ("fault kill broker 1 --fault-command x --dir d --links l", "--dir, --compose and --links name a cluster each"),
    ("group describe", "missing group name, or --all-groups"),
    ("group describe g --all-groups", "cannot be used together"),
    ("group describe ''", "a group name must not be empty"),
    ("group describe g --state --members", "one of --offsets, --members and --state"),
    ("group list --state sleepy", "--state 'sleepy' is unknown: use PreparingRebalance"),
    ("group list --type share", "--type 'share' is unknown: use Classic, Consumer"),
    ("group delete", "missing group name"),
    ("group delete-offsets g h --topic t", "give exactly one group"),
    ("group delete-offsets --topic t", "give exactly one group"),
    ("group delete-offsets '' --topic t", "a group name must not be empty"),
    ("group reset-offsets --to-latest", "missing group name"),
    ("group reset-offsets g --to-latest", "use exactly one of --topic, --all-topics and --from-file"),
    ("group reset-offsets g --from-file f --topic t", "use exactly one of --topic, --all-topics and --from-file"),
    (RESET, "use exactly one of --to-earliest"),
    (f"{RESET} --to-latest --to-earliest", "use exactly one of"),
    (f"{RESET} --to-latest --all-topics", "use exactly one of --topic, --all-topics and --from-file"),
    (f"{RESET} --to-latest --dry-run --execute", "cannot be used together"),
    (f"{RESET} --to-datetime now", "'now' is not a point in time: expected for example 2026-"),
    (f"{RESET} --by-duration 1w", "'1w' is not a duration: expected for example 20s"),
    (f"{RESET} --to-latest --export --format json", "cannot be combined with --format json"),
    ("inspect verify", "give entries of log.dirs"),
    ("produce", "missing topic name"),
    ("produce t --topic t", "give the topic once"),
    ("produce t --header a", "--header 'a': expected NAME=VALUE"),
    ("produce t --header =a", "--header '=a': expected NAME=VALUE"),
    ("produce t --key-separator ''", "--key-separator must not be empty"),
    ("produce t --key-separator '\\q'", "unknown escape"),
    ("produce t --key k --key-separator :", "cannot be used together"),
    ("produce t --json-lines --null-value ''", "leave out the other options"),
    ("reassign generate --topics-to-move-json-file - --broker-list 1,x", "expected broker ids like 1,2,3"),
    ("reassign generate --topics-to-move-json-file - --broker-list ''", "expected broker ids like 1,2,3"),
    ("reassign generate --topics-to-move-json-file - --broker-list 1,1", "names a broker twice"),
    *(
        (f"reassign execute --reassignment-json-file - --replica-alter-log-dirs-throttle {rate}", "throttle")
        for rate in ("0", "-1", "fast")
    ),
    ("topic create", "missing topic name"),
    ("topic create t --topic t", "give the topic once"),
    ("topic create t --replica-assignment 1:2 --partitions 1", "cannot be combined"),
    ("topic create t --config x", "KEY=VALUE"),
    ("topic describe --under-replicated-partitions --unavailable-partitions", "use only one of --under-replicated-"),
    ("topic describe --at-min-isr-partitions --topics-with-overrides", "use only one of --under-replicated-"),
    ("topic describe [", "not a regular expression"),
    ("topic alter --partitions 3", "missing topic name"),
    ("topic alter t", "nothing to change"),
    ("topic alter t --partitions 3 --replica-assignment 1,2", "has 2 partitions"),
    ("topic alter t --config a=1 --delete-config a", "a is both set and deleted"),
    ("topic delete", "missing topic names"),
]


@pytest.mark.parametrize(("line", "says"), TYPED_WRONGLY, ids=[line for line, _ in TYPED_WRONGLY])
def test_a_wrong_command_line_is_refused(fake: FakeCluster, line: str, says: str) -> None:
    result = ottla(line, "{}")
    assert result.exit_code == 2
    assert says in result.output
    assert fake.calls == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("config describe --entity-type brokers --entity-name 9", "broker 9 is not live, and only that broker knows"),
        ("config describe --entity-type topics --entity-name no", "topic 'no' does not exist"),
        (f"config alter {ORDERS} --add-config retention.mss=1", "retention.mss; did you mean retention.ms?"),
        (f"config alter {ORDERS} --delete-config retention.ms", "is not set on topic orders, so it cannot be deleted"),
        ("elect --election-type preferred --topic orders --partition 9", "partition orders-9 does not exist"),
        ("elect --election-type preferred --path-to-json-file -", "standard input: line 1, column 1: not JSON"),
        ("elect --election-type preferred --path-to-json-file /no", "/no: No such file or directory"),
        ("reassign execute --reassignment-json-file /no", "/no: No such file or directory"),
        ("topic alter orders --partitions 1", "has 2 partitions and cannot get fewer: use --partitions of at least 3"),
        ("topic alter orders --partitions 2", "already has 2 partitions"),
        ("topic alter nope --partitions 2", "topic 'nope' does not exist"),
        ("topic alter orders --partitions 9 --config x.y=1", "Unknown topic config name: x.y"),
    ],
)
def test_a_command_that_the_cluster_refuses(fake: FakeCluster, line: str, says: str) -> None:
    result = ottla(line, "")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert says in result.output
    assert fake.calls == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("topic list", "Error: no cluster given: use --bootstrap-server"),
        ("topic list --bootstrap-server h:1 --command-config missing", "No such file"),
        *(
            (f"{command} --bootstrap-server h:1 --command-config bad", "bad: No such configuration property")
            for command in ("produce t", "consume t")
        ),
        ("topic list --bootstrap-server h:1 --command-config bad", "bad: line 1: no.such.key: unknown property"),
        *(
            (f"cluster {command} --dir .", "Error: there is no cluster in")
            for command in ("status", "stop", "destroy --yes", "kill 1", "pause 1", "resume 1", "restart-broker 1")
        ),
        ("cluster start --dir run --zookeeper 127.0.0.1:1/x", "Error: no ZooKeeper answers at 127.0.0.1:1:"),
        ("sim run --plan nothing", "Error: nothing: No such file or directory"),
        ("sim run --plan latin", "Error: latin is not UTF-8"),
        ("sim run --plan broken", "Error: broken, line 2, column 1: not YAML: expected ',' or ']'"),
        ("inspect znodes --zookeeper nosuch.invalid:2181/x", "the host name nosuch.invalid does not resolve"),
        ("inspect log nothing", "is not a partition's directory"),
        ("inspect verify nothing", "is not a directory"),
        ("inspect verify --cluster .", "has no brokers"),
    ],
)
def test_nothing_to_work_on(line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OTTLA_BOOTSTRAP_SERVER", raising=False)
    Path("bad").write_text("no.such.key=1\n")
    Path("latin").write_bytes(b"\xe9")
    Path("broken").write_text("- [1\n")
    result = ottla(line, "")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert says in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"bad", "broken", "latin"}
