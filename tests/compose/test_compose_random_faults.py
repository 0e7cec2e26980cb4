"""Seeded faults on containers under load (FAU-2, FLT-34). Thirty of them: `SEED=7 COUNT=30` in the environment."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest

from tests.support.cli import COMMAND
from tests.support.compose_project import ComposeProject
from tests.support.invariants import eventually

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]
SEED, COUNT = os.environ.get("SEED", "11"), os.environ.get("COUNT", "5")


def test_random_faults_lose_nothing(project: ComposeProject, capsys: pytest.CaptureFixture[str]) -> None:
    """`ottla verify run` judges the load that runs beside the program, which here causes the faults.

    A busy machine may take longer to serve again than the run waits for: `unrecovered`.
    """
    faults = [*COMMAND, "fault", "run", "--random", "--seed", SEED, "--count", COUNT, "--compose", project.name]
    command = [*COMMAND, "verify", "run", "--compose", project.name, "--seconds", "2000"]
    command += ["--allow", "unrecovered", "--", *faults]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2200, check=False)
    with capsys.disabled():
        print(f"\n{shlex.join(faults)}\n{done.stdout}{done.stderr}")
    verdict = (done.stdout.partition("Reading back")[2] or done.stdout[-2000:]) + done.stderr
    assert done.returncode == 0, f"exit code {done.returncode}: {' | '.join(verdict.split(chr(10)))}"
    assert "PASSED" in done.stdout
    eventually(project.is_healthy, "all four containers healthy again", timeout_s=120)
