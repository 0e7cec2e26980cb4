"""`ottla topic` as its user sees it: what is refused before a broker is asked, and the exit codes."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tools.admin.topic_commands import parse_configs, parse_replica_assignment, topic

USAGE = 2
FAILURE = 1


@pytest.mark.parametrize(
    ("text", "assignment"), [("1", [[1]]), ("1:2:3,2:3:1", [[1, 2, 3], [2, 3, 1]]), ("0,1,2", [[0], [1], [2]])]
)
def test_parse_replica_assignment(text: str, assignment: list[list[int]]) -> None:
    assert parse_replica_assignment(text) == assignment


@pytest.mark.parametrize("text", ["", "a", "1:", "1:1", "1:2,3", "1;2"])
def test_parse_replica_assignment_refuses(text: str) -> None:
    with pytest.raises(click.UsageError):
        parse_replica_assignment(text)


def test_parse_configs() -> None:
    assert parse_configs(["a=b", "c = d=e", "empty="]) == {"a": "b", "c": "d=e", "empty": ""}
    for pair in ("a", "=b"):
        with pytest.raises(click.UsageError):
            parse_configs([pair])


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (["create"], USAGE, "which topic?"),
        (["create", "t", "--topic", "t"], USAGE, "name the topic once"),
        (["create", "t", "--partitions", "0"], USAGE, "--partitions"),
        (["create", "t", "--replication-factor", "x"], USAGE, "--replication-factor"),
        (["create", "t", "--replica-assignment", "1:2", "--partitions", "1"], USAGE, "leave the others out"),
        (["create", "t", "--config", "x"], USAGE, "KEY=VALUE"),
        (["describe", "--under-replicated-partitions", "--unavailable-partitions"], USAGE, "one filter"),
        (["describe", "--at-min-isr-partitions", "--topics-with-overrides"], USAGE, "one filter"),
        (["describe", "["], USAGE, "no regular expression"),
        (["list", "--format", "xml"], USAGE, "--format"),
        (["list"], FAILURE, "Error: no cluster to talk to: give --bootstrap-server"),
        (["list", "--bootstrap-server", "h:1", "--command-config", "missing"], FAILURE, "No such file"),
        (["list", "--bootstrap-server", "h:1", "--command-config", "bad"], FAILURE, "bad: No such configuration"),
    ],
)
def test_refusals(
    arguments: list[str], exit_code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OTTLA_BOOTSTRAP_SERVER", raising=False)
    Path("bad").write_text("no.such.key=1\n")
    result = CliRunner().invoke(topic, arguments)
    assert result.exit_code == exit_code
    assert says in result.output
    if exit_code == FAILURE:
        assert len(result.output.splitlines()) == 1
