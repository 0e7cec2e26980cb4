"""How the shell completes a word. A cluster that does not answer delays it by a second at most."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from click.shell_completion import ShellComplete

from tests.support.cli import ottla
from tests.support.fake_admin import FakeCluster
from tools.admin.bootstrap import BOOTSTRAP_VARIABLE
from tools.cli import SUBCOMMANDS, main
from tools.completion import SHELLS


def completed(*words: str) -> list[str]:
    """The completions of the last word."""
    *arguments, incomplete = words
    shell = ShellComplete(main, {}, "ottla", "_OTTLA_COMPLETE")
    return [item.value for item in shell.get_completions(arguments, incomplete)]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["re"], ["reassign", "replay"]),
        (["reassign", "e"], ["execute"]),
        (["topic", "describe", "o"], ["orders"]),
        (["topic", "describe", "--topic", ""], ["orders"]),
        (["topic", "delete", "orders", "--topic", "x,o"], ["x,orders"]),
        (["elect", "--topic", "ord"], ["orders"]),
        (["elect", "--election-type", ""], ["preferred", "unclean"]),
        (["reassign", "generate", "--broker-list", "1,"], ["1,1", "1,2", "1,3"]),
        (["config", "describe", "--entity-type", "brokers", "--entity-name", ""], ["1", "2", "3"]),
        (["config", "describe", "--entity-type", "topics", "--entity-name", ""], ["orders"]),
    ],
)
def test_values(fake: FakeCluster, words: list[str], values: list[str]) -> None:
    assert completed(*words) == values


def test_all_subcommands() -> None:
    assert completed("") == sorted(SUBCOMMANDS)


def test_without_a_cluster_nothing_is_completed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "127.0.0.1:1")
    assert completed("topic", "describe", "") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_scripts(shell: str) -> None:
    result = ottla(f"completion {shell}")
    assert result.exit_code == 0
    assert "_OTTLA_COMPLETE" in result.output
    assert "%(" not in result.output


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_passes_the_line_with_its_colons() -> None:
    script = ottla("completion bash").output
    # `env` stands for ottla here, and tells which words it would be asked to complete.
    line = "ottla topic describe --bootstrap-server host:9092 or"
    check = f"""{script}
env() {{ echo "plain,$1 $2"; }}
COMP_LINE='{line}' COMP_POINT={len(line)}
_ottla_completion ottla
echo "${{COMPREPLY[0]}}"
"""
    said = subprocess.run(["bash", "-c", check], capture_output=True, text=True, check=True, timeout=20).stdout
    assert said.strip() == f"COMP_WORDS={line} COMP_CWORD=5"
