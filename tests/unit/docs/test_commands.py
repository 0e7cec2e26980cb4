"""Each `ottla ...`, `make ...` and `python -m ...` in the pages is a command that exists, with options that it has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from tests.unit.docs.pages import INLINE, PAGES, ROOT, blocks, name_of, prose, text_of
from tools.cli import main

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = {*" ".join(re.findall(r"^([a-z][\w -]*):", MAKEFILE, re.MULTILINE)).split()}
PROGRAMS = ("ottla", "make", "python")
SEPARATORS = {"|", "&&", ";"}
SUBSTITUTED = re.compile(r"\$\((ottla [^)]*)\)")


def simple_commands(line: str) -> Iterator[list[str]]:
    """The parts of a line that start with one of our programs."""
    for inner in SUBSTITUTED.findall(line):
        yield from simple_commands(inner)
    words: list[str] = []
    for word in [*shlex.split(line, comments=True), ";"]:
        if word not in SEPARATORS:
            words.append(word)
            continue
        if words and Path(words[0]).name in PROGRAMS:
            yield words[: words.index(">")] if ">" in words else words
        words = []


def shown(page: Path) -> list[str]:
    """The lines that a reader types, each with the lines that continue it, and those of the workflows for a CI."""
    texts = [block.replace("\\\n", "") for block in blocks(text_of(page), "console")]
    typed = [line[2:] for text in texts for line in text.splitlines() if line[:2] == "$ "]
    return typed + [line for run in steps(page) for line in run.replace("\\\n", "").splitlines() if "ottla" in line]


def steps(page: Path) -> list[str]:
    """What the workflows in the page run."""
    files = [yaml.safe_load(block) for block in blocks(text_of(page), "yaml")]
    jobs = [job for file in files if isinstance(file, dict) for job in file.get("jobs", {}).values()]
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def mentioned(page: Path) -> list[str]:
    """Commands within sentences, which may lack required arguments."""
    return [text for text in INLINE.findall(prose(text_of(page))) if Path(text.split(" ")[0]).name in PROGRAMS]


def check(words: list[str], *, is_whole: bool) -> None:
    program = Path(words[0]).name
    if program == "ottla":
        check_ottla(words[1:], is_whole=is_whole)
    elif program == "make":
        check_make(words[1:])
    elif words[1:2] == ["-m"]:
        module = ROOT.joinpath(*words[2].split("."))
        assert words[2] == "pytest" or module.with_suffix(".py").exists() or (module / "__main__.py").exists(), words


def check_make(words: list[str]) -> None:
    for word in words:
        name, is_variable, _ = word.partition("=")
        assert re.search(rf"\b{name}\b", MAKEFILE) if is_variable else name in TARGETS, f"make {word}"


def check_ottla(words: list[str], *, is_whole: bool) -> None:
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group):
        if not words or words[0] == "COMMAND" or words[0] in command.get_help_option_names(context):
            return
        if any(words[0] in parameter.opts for parameter in command.params):
            return
        found = command.get_command(context, words[0])
        assert found is not None, f"{command.name} has no command {words[0]}"
        command, words, context = found, words[1:], click.Context(found, parent=context)
    if words[-1:] == ["--help"]:
        return
    values, rest, _ = command.make_parser(context).parse_args(list(words))
    assert not rest
    for parameter in command.params:
        value = values.get(parameter.name or "")
        if not isinstance(parameter.type, click.Path | click.File) and isinstance(value, str | list | tuple):
            parameter.type_cast_value(context, value)
        assert value or not parameter.required or not is_whole, f"{parameter.name} is missing"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist(page: Path) -> None:
    for lines, is_whole in ((shown(page), True), (mentioned(page), False)):
        for line in lines:
            for words in simple_commands(line):
                try:
                    check(words, is_whole=is_whole)
                except click.UsageError as error:
                    pytest.fail(f"{line}: {error.format_message()}")


def test_a_command_that_does_not_exist_is_found() -> None:
    for line in (
        "ottla topic make t",
        "ottla topic create t --replicas 3",
        "ottla elect --election-type best",
        "make tests",
    ):
        with pytest.raises((AssertionError, click.UsageError)):
            check(next(simple_commands(line)), is_whole=True)
    assert list(simple_commands("seq 3 | ottla produce t > out; git pull && make setup")) == [
        ["ottla", "produce", "t"],
        ["make", "setup"],
    ]
