"""`make compose-demo`: containers, a load, `docker kill` of a leader, what the brokers did, and the verdict."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from protocol.plain_text import escaped_lines
from tools.cluster.ports import NoFreePorts
from tools.cluster.processes import ClusterError
from tools.compose.project import BUILD_TIMEOUT_S, FILE, REPOSITORY, UP_TIMEOUT_S, Project, end, find_compose
from tools.faults.clusters import find_target
from tools.interrupts import Interrupted, ignore_from_now, interruptible
from tools.numbers import DIRECTORY
from tools.terminal import echo

PROGRAM = "examples/python/orders.py"
TOPIC = "orders"
KILL_S, RESTART_S, END_S = 5, 15, 25
LOOK_AFTER_S = 3.0
"""The story of a failover is over by then: another broker leads, and the ISRs are smaller."""
OTTLA = (sys.executable, "-c", "from tools.cli import main; main()")
KILLED = re.compile(r" *[0-9.]+ s  kill ")
ENGINE_FAILED = 2


@click.command()
@click.option(
    "--out",
    type=DIRECTORY,
    default=Path("demo-out/containers"),
    show_default=True,
    help="The directory for the pages.",
)
def main(out: Path) -> None:
    """Show a failover in containers: Docker kills a leader under load. Everything that it starts is removed at the end."""
    try:
        with interruptible(), ExitStack() as started:
            try:
                code = Demo(find_compose(), out, started).run()
            except (ClusterError, NoFreePorts, OSError) as problem:
                echo_error(problem)
                code = ENGINE_FAILED
            finally:
                ignore_from_now()
    except Interrupted as interrupt:
        echo(f"{interrupt}: everything that was started has been removed.", err=True)
        code = interrupt.exit_code
    sys.exit(code)


class Demo:
    """One run. What it starts is ended when `started` closes, whatever happens."""

    def __init__(self, compose: Sequence[str], out: Path, started: ExitStack) -> None:
        self._project = Project(compose)
        self._compose = compose
        self._out = out
        self._started = started
        self._out.mkdir(parents=True, exist_ok=True)

    def run(self) -> int:
        """The exit code of the verdict."""
        if not (REPOSITORY / FILE).is_file():
            raise ClusterError(f"{REPOSITORY} has no {FILE}: the demo runs in a clone of ottla only")
        began = time.monotonic()
        heading("1. The images of ZooKeeper and of a broker")
        self._shown("build", "zookeeper", "kafka1", timeout_s=BUILD_TIMEOUT_S)
        echo(f"Built in {time.monotonic() - began:.0f} s. The next time they are ready.")

        heading("2. A cluster of three brokers, with ports of its own")
        self._started.callback(self._remove)
        began = time.monotonic()
        self._shown("up", "--detach", timeout_s=UP_TIMEOUT_S)
        self._project.wait_until_healthy()
        cluster = find_target(None, self._project.name, None, None)
        assert cluster is not None
        echo(f"Four containers are healthy after {time.monotonic() - began:.0f} s.")
        echo(f"Every Kafka client can use it meanwhile: {cluster.bootstrap_servers}")

        heading("3. A load, and `docker kill` of the container of a leader")
        code = self._verdict()

        heading("5. The pages")
        self._ottla("timeline", "--compose", self._project.name, "--html", str(self._out / "timeline.html"))
        echo(f"{self._out / 'timeline.html'}: what each broker did. {self._out / 'verdict.html'}: the records.")
        return code

    def _verdict(self) -> int:
        """Runs the load with its faults, and tells the story after the kill. The exit code of `ottla verify run`."""
        echo(
            f"{PROGRAM} writes and reads {TOPIC}. After {KILL_S} s its leader's container is killed, after {RESTART_S} s started."
        )
        faults = (f"kill leader of {TOPIC}-0 at {KILL_S}s", f"restart it at {RESTART_S}s")
        where = ("verify", "run", "--compose", self._project.name, "--topic", f"{TOPIC}:6", "--seconds", str(END_S))
        what = (*(word for fault in faults for word in ("--fault", fault)), "--html", str(self._out / "verdict.html"))
        arguments = (*where, *what, "--", "python", PROGRAM)
        say_command("ottla", *arguments)
        verify = subprocess.Popen(
            [*OTTLA, *arguments[:-2], sys.executable, PROGRAM],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._started.callback(end, verify)
        assert verify.stdout is not None
        was_told = False
        for line in verify.stdout:
            echo(line.rstrip("\n"))
            if KILLED.match(line) and not was_told:
                was_told = True
                time.sleep(LOOK_AFTER_S)
                heading("4. What the brokers did, by their own event logs")
                self._ottla("timeline", "--compose", self._project.name)
                heading("   The load goes on; the container is started again; then the verdict")
        code = verify.wait()
        if not was_told:
            raise ClusterError("the leader's container was not killed: see above")
        return code

    def _shown(self, *arguments: str, timeout_s: float) -> None:
        """A command of Compose, shown as one types it."""
        say_command(*self._compose, "--project-name", self._project.name, *arguments)
        self._project.compose(*arguments, timeout_s=timeout_s)

    def _ottla(self, *arguments: str) -> None:
        """A command of ours, with what it prints. Raises ClusterError if it fails."""
        say_command("ottla", *arguments)
        done = subprocess.run([*OTTLA, *arguments], cwd=REPOSITORY, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise ClusterError(f"ottla {arguments[0]} failed with exit code {done.returncode}")

    def _remove(self) -> None:
        echo()
        echo("Removing its containers, volumes and network ...")
        try:
            self._project.remove()
        except ClusterError as problem:
            echo_error(problem)
            echo(f"Remove them by hand: {shlex.join(self._project.command('down', '--volumes'))}", err=True)


def heading(text: str) -> None:
    echo()
    echo(text)
    echo()


def say_command(*words: str) -> None:
    echo(f"$ {shlex.join(words)}")
    with contextlib.suppress(OSError):
        sys.stdout.flush()


def echo_error(problem: Exception) -> None:
    """Several lines if Docker's output belongs to it."""
    click.echo(f"Error: {escaped_lines(str(problem))}", err=True)


if __name__ == "__main__":
    main()
