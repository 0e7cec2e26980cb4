"""A temporary directory goes with its owner; if the owner was killed, the next owner removes it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tools.owned_directories import LOCK, owned_directory

OWNER = """
import sys
from contextlib import ExitStack
from tools.owned_directories import owned_directory
print(owned_directory("mine-", ExitStack()), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_it_is_removed_with_its_contents_by_its_owner(temporary: Path) -> None:
    with ExitStack() as started:
        path = owned_directory("mine-", started)
        (path / "file").write_text("x")
        assert path.parent == temporary
    assert not path.exists()


def test_those_of_killed_owners_are_removed_and_no_others(temporary: Path) -> None:
    for name in ("mine-without-lock", "other-abandoned", "mine-abandoned"):
        (temporary / name / "deep").mkdir(parents=True)
    (temporary / "other-abandoned" / LOCK).touch()
    (temporary / "mine-abandoned" / LOCK).touch()
    (temporary / "mine-link").symlink_to(temporary / "other-abandoned")
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        with ExitStack() as started:
            mine = owned_directory("mine-", started)
            kept = {mine.name, theirs.name, "mine-without-lock", "other-abandoned", "mine-link"}
            assert {path.name for path in temporary.iterdir()} == kept
            owner.kill()
            owner.wait()
            owned_directory("mine-", started)
            assert mine.exists()
            assert not theirs.exists()
