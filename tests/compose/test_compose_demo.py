"""`make compose-demo`: it tells the story to its end, and leaves nothing behind, also after Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.compose_project import REPOSITORY, find_compose, run
from tests.support.invariants import eventually

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1500)]
DEMO = (sys.executable, "-m", "tools.compose.demo")


def left_behind() -> str:
    """Names of containers, volumes and networks of demos."""
    mine = ("--filter", "name=ottla-demo-", "--format", "{{.Names}}")
    volumes = ("--filter", "name=ottla-demo-", "--format", "{{.Name}}")
    return (
        run(["docker", "ps", "--all", *mine])
        + run(["docker", "volume", "ls", *volumes])
        + run(["docker", "network", "ls", *volumes])
    )


def test_the_demo_tells_the_story_and_removes_everything(tmp_path: Path) -> None:
    find_compose()
    command = [*DEMO, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = (
        "1. The images",
        "2. A cluster",
        "3. A load",
        "kill leader of orders-0: broker ",
        "4. What the brokers did",
        "elects broker ",
        "start",
        "PASSED  clean: 0 findings",
        "5. The pages",
        "Removing its containers",
    )
    at = -1
    for step in steps:
        assert step in done.stdout[at + 1 :], f"no {step!r} in its place\n{done.stdout}"
        at = done.stdout.index(step, at + 1)
    assert (tmp_path / "verdict.html").stat().st_size > 10_000
    assert (tmp_path / "timeline.html").stat().st_size > 10_000
    assert left_behind() == ""


@pytest.mark.parametrize("said", [" up --detach", "kill leader of orders-0: broker "])
def test_an_interrupted_demo_removes_everything(said: str, tmp_path: Path) -> None:
    """As a terminal does it: SIGINT to the whole foreground group."""
    find_compose()
    log = tmp_path / "log"
    with log.open("w") as printed:
        command = [*DEMO, "--out", str(tmp_path / "out")]
        demo = subprocess.Popen(command, stdout=printed, stderr=printed, cwd=REPOSITORY, start_new_session=True)
    try:
        eventually(lambda: said in log.read_text() or demo.poll() is not None, said, timeout_s=900)
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(timeout=120) == 128 + signal.SIGINT, log.read_text()
    finally:
        demo.kill()
        demo.wait()
    assert left_behind() == ""
    assert "Traceback" not in log.read_text()


def test_without_an_engine_one_line_says_what_to_do(tmp_path: Path) -> None:
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    command = [*DEMO, "--out", str(tmp_path / "out")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY, env=environment
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "`make demo` needs no containers" in done.stderr
