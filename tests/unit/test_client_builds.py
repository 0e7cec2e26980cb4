"""tests/clients/builds.py: programs are built once, and again when a source changes; what cannot be built says why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.clients import builds
from tests.clients.builds import GO, NODE, RUST, Build, go_version, node_version, rust_version

COUNT = (
    "import pathlib; path = pathlib.Path('count'); path.write_text(path.read_text() + '+' if path.exists() else '+')"
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def new_build(fetch: str = "", build: str | None = COUNT, *, tool: str = sys.executable, copies: bool = False) -> Build:
    """Of the program `programs/own/source`."""
    compiler = (lambda *_: python(build)) if build is not None else None
    return Build("own", (tool,), "--version", lambda *_: python(fetch), compiler, needs_copies=copies)


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(builds, "PROGRAMS", tmp_path / "programs")
    monkeypatch.setattr(builds, "BUILDS", tmp_path / "results")
    source = tmp_path / "programs" / "own" / "source"
    source.parent.mkdir(parents=True)
    source.write_text("one")
    return source


def test_builds_once(source: Path) -> None:
    build = new_build()
    assert [build.missing(), build.missing()] == [None, None]
    assert Path(build.program("count")).read_text() == "+"
    source.write_text("two")
    assert build.missing() is None
    assert Path(build.program("count")).read_text() == "++"


def test_a_missing_tool() -> None:
    assert new_build(tool="no-such-compiler").missing() == "no-such-compiler is not installed"


def test_a_failed_download_is_the_reason_and_is_tried_again() -> None:
    failing = new_build(fetch="raise SystemExit('first line\\nerror: no network')")
    assert failing.missing() == failing.missing() == "its packages cannot be fetched: error: no network"
    assert new_build().missing() is None


def test_a_download_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "LIMIT_S", 0)
    reason = new_build(fetch="import threading; threading.Event().wait()").missing()
    assert reason is not None
    assert reason.endswith("did not end in 0 s")


def test_a_source_that_does_not_compile_is_not_missing() -> None:
    broken = new_build(build="raise SystemExit('line 3: syntax')")
    assert broken.missing() is None
    with pytest.raises(AssertionError, match="line 3: syntax"):
        broken.program("count")
    mended = new_build()
    assert mended.missing() is None
    assert Path(mended.program("count")).exists()


def test_copies_for_a_language_without_a_compiler(source: Path) -> None:
    build = new_build(build=None, copies=True)
    assert build.missing() is None
    assert Path(build.program("source")).read_text() == source.read_text()


def test_versions_are_those_of_the_lock_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for build in (GO, NODE, RUST):
        assert build.sources.is_dir()
    versions = [
        go_version("github.com/twmb/franz-go"),
        go_version("github.com/IBM/sarama"),
        go_version("github.com/segmentio/kafka-go"),
        node_version("kafkajs"),
        rust_version("rdkafka"),
        rust_version("rskafka"),
    ]
    assert all(version[0].isdigit() and "." in version for version in versions), versions
