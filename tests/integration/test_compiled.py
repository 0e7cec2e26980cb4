"""The compiled form in a process, and how it becomes plain Python. tests/unit/broker/test_compiled.py has the rules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker import compiled

pytestmark = pytest.mark.integration


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An installation of its own, with the compiled form that is here."""
    is_compiled, words = compiled.form()
    if not is_compiled:
        pytest.skip(f"brokers are {words}: make setup")
    directory = compiled.read_manifest().directory

    def is_left_out(folder: str, names: list[str]) -> list[str]:
        others = {"__pycache__", "lock"}
        if Path(folder) == compiled.LIBRARY:
            others |= {name for name in names if name.startswith("form_") and name != directory}
        return [name for name in names if name in others]

    for package in ("broker", "controller", "protocol"):
        shutil.copytree(compiled.SOURCES / package, tmp_path / package, ignore=is_left_out)
    return tmp_path


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def form_of(installed: Path) -> str:
    asked = run(installed, "-m", "broker", "--version")
    assert asked.returncode == 0, asked.stderr
    return asked.stdout.strip()


def library_of(installed: Path) -> Path:
    (library,) = installed.glob(f"broker/compiled/lib/form_*/*{compiled.SHARED}{compiled.SUFFIX}")
    return library


def test_the_form_goes_where_the_sources_go(installed: Path) -> None:
    assert form_of(installed) == compiled.form({})[1]
    imports = "from broker import compiled; compiled.use(); import protocol.kafka.wire as w; print(w.__file__)"
    assert run(installed, "-c", imports).stdout.strip().endswith(compiled.SUFFIX)


@pytest.mark.parametrize("size", [0, 4096, 100_000])
def test_a_library_that_is_cut_off_leaves_plain_python(installed: Path, size: int) -> None:
    """A library whose end is missing could kill the process with SIGBUS."""
    os.truncate(library_of(installed), size)
    assert form_of(installed).startswith("plain Python")
    assert "is damaged" in form_of(installed)


def test_a_source_that_changed_leaves_plain_python(installed: Path) -> None:
    with (installed / "broker" / "purgatory.py").open("a") as source:
        source.write("# changed\n")
    assert (
        form_of(installed)
        == "plain Python, because broker.purgatory has changed since `make setup` compiled the modules"
    )


def test_a_traceback_names_the_file_and_the_line(installed: Path) -> None:
    fails = "from broker import compiled; compiled.use(); from protocol.kafka.wire import read_string; read_string(b'', 0, False)"
    said = run(installed, "-c", fails).stderr
    lines = (installed / "protocol" / "kafka" / "wire.py").read_text().splitlines()
    assert said.startswith("Traceback")
    names = [line for line in said.splitlines() if 'File "protocol/kafka/wire.py", line ' in line]
    assert names, said
    number = int(names[0].partition("line ")[2].partition(",")[0])
    assert "in read_nullable_string" in names[0], "which read_string calls"
    assert lines[number - 1].strip()
