"""`ottla produce` and `ottla consume`: what is refused before a broker is asked."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tools.cli import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["produce"], "missing topic name"),
        (["produce", "t", "--topic", "t"], "give the topic once"),
        (["produce", "t", "--acks", "2"], "--acks"),
        (["produce", "t", "--compression", "rar"], "--compression"),
        (["produce", "t", "--partition", "-1"], "--partition"),
        (["produce", "t", "--header", "a"], "--header 'a': expected NAME=VALUE"),
        (["produce", "t", "--header", "=a"], "--header '=a': expected NAME=VALUE"),
        (["produce", "t", "--key-separator", ""], "--key-separator must not be empty"),
        (["produce", "t", "--key-separator", "\\q"], "unknown escape"),
        (["produce", "t", "--key", "k", "--key-separator", ":"], "cannot be used together"),
        (["produce", "t", "--json-lines", "--null-value", ""], "leave out the other options"),
        (["produce", "t", "--timeout-ms", "0"], "--timeout-ms"),
        (["consume"], "missing topic name"),
        (["consume", "t", "--format", "%z"], "unknown token '%z'"),
        (["consume", "t", "--offset", "soon"], "expected an offset, -N for the last N records"),
        (["consume", "t", "--offset", "1", "--from-beginning"], "cannot be used together"),
        (["consume", "t", "--group", "g", "--partition", "1"], "set its offsets with `ottla group reset-offsets`"),
        (["consume", "t", "--group", "g", "--offset", "1"], "--group starts at the group's committed offsets"),
        (["consume", "t", "--group", ""], "--group must not be empty"),
        (["consume", "t", "--max-messages", "0"], "--max-messages"),
    ],
)
def test_refusals(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_a_bad_command_config(command: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("config") / "bad"
    file.write_text("no.such.key=1\n")
    arguments = [command, "t", "--bootstrap-server", "h:1", "--command-config", str(file)]
    result = CliRunner().invoke(main, arguments, input="")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "bad: No such configuration property" in line
