"""docs/LESSON.md word for word: its commands on a cluster with links, and the rules that its timelines must name (OBS-1, FAU-1)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import COMMAND
from tests.unit.docs.pages import ROOT, blocks, text_of

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(900)]

RULE = re.compile(r"\b(?!FLT)[A-Z]{3}-\d+\b")
"""In an output. Which fault it was depends on who is controller, which a reader does not choose; so do CONTROLLERS_RULES."""
CONTROLLERS_RULES = {"CTL-1", "CTL-2", "CTL-16"}
PAUSE_S = 1
"""Between two commands. A reader takes longer."""


def sections() -> Iterator[tuple[str, list[str], str]]:
    """(heading, the lines that a reader types, the outputs on the page)"""
    for text in re.split(r"^## ", text_of(ROOT / "docs" / "LESSON.md"), flags=re.MULTILINE):
        lines = [line for block in blocks(text, "console") for line in block.splitlines()]
        yield text.partition("\n")[0], [line[2:] for line in lines], "".join(blocks(text, "text"))


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a reader: `ottla` and `python` in the path, in a directory with the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "bin").mkdir()
    for name, words in (("ottla", COMMAND), ("python", (sys.executable,))):
        quoted = " ".join(f"'{word}'" for word in words)
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    yield environment
    subprocess.run(["ottla", "cluster", "destroy", "--yes"], cwd=tmp_path, env=environment, check=False)


def test_the_lesson_as_a_reader_types_it(typed: dict[str, str], tmp_path: Path) -> None:
    script = "\n".join(
        f"echo {shlex.quote(f'@@ {heading}')}\n"
        + "".join(f"{line}\necho '@ exit' $?\nsleep {PAUSE_S}\n" for line in lines)
        for heading, lines, _ in sections()
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=typed, input="y\n", text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=840, check=False,
    )  # fmt: skip
    printed = dict(part.split("\n", 1) for part in re.split(r"^@@ ", done.stdout, flags=re.MULTILINE)[1:])
    for heading, lines, shown in sections():
        output = printed[heading]
        codes = [int(code) for code in re.findall(r"^@ exit (\d+)$", output, re.MULTILINE)]
        wrong = [
            f"`{line}` exits with {code}"
            for line, code in zip(lines, codes, strict=True)
            if code != int("verify run" in line)
        ]
        assert not wrong, f"{heading}: {wrong}\n{output}"
        missing = {*RULE.findall(shown)} - CONTROLLERS_RULES - {*RULE.findall(output)}
        assert not missing, f"{heading}: {missing}\n{output}"
    assert "FAILED" in printed["4. An unclean election loses records, and the verdict finds them"]
    assert "\n300\n0\n" in printed["6. A group's coordinator moves"]
    assert "4 5\n5 101\n" in printed["7. A log is cut where its leader epoch ended"]
