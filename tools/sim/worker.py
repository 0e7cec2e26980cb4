"""A process that runs simulations: an interpreter of its own, in which the order of sets is the same on every day (PYTHONHASHSEED=0).

Each history runs in a fork of it, which ends without tidying up: to tidy up would run the brokers' code. So histories share nothing.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from broker import compiled
from tools.failures import ExpectedError

if TYPE_CHECKING:  # the worker imports the broker when its form and its number of cores are set
    from tools.sim.plan import Plan
    from tools.sim.simulation import Outcome

HASH_SEED = "0"
CORES = 2
ROOT = Path(__file__).parents[2]


class SimulationFailed(ExpectedError):
    """The simulation itself has an error, of which the text has the traceback."""


class Worker:
    """Use it as a context. One history at a time. If it takes no mutants, it runs the compiled form, if there is one."""

    def __init__(self, *, takes_mutants: bool = True) -> None:
        self._form = {compiled.SWITCH: "0"} if takes_mutants else {}

    def __enter__(self) -> Worker:
        here, there = Pipe()
        environment = {**os.environ, **self._form, "PYTHONHASHSEED": HASH_SEED}
        self._connection = here
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.sim.worker", str(there.fileno())],
            pass_fds=[there.fileno()],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        there.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        os.killpg(self._process.pid, signal.SIGKILL)  # also the fork that runs a history
        self._process.wait()

    def start(self, plan: Plan, mutant: str = "") -> None:
        """Starts a history. `mutant`: a function `module:name` that first takes a rule out of the brokers.

        It gets an object with `setattr(object, name, value)`, as of `pytest.MonkeyPatch`.
        """
        self._connection.send((plan, mutant))

    @property
    def connection(self) -> Connection:
        """To wait for the end of a history."""
        return self._connection

    def outcome(self) -> Outcome:
        """Of the history that was started. Raises SimulationFailed."""
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise SimulationFailed("the process of the simulation has ended") from None
        if isinstance(answer, str):
            raise SimulationFailed(f"the simulation itself failed:\n{answer}")
        outcome: Outcome = answer
        return outcome


def main() -> None:
    """The worker's process."""
    compiled.use()
    os.cpu_count = lambda: CORES  # brokers choose the number of their threads by it
    from tools.sim import simulation  # imported once, before the forks

    prepare()
    gc.disable()  # a fork ends before its garbage is worth a collection, and collecting a broker would run its code
    connection = Connection(int(sys.argv[1]))
    while True:
        try:
            plan, mutant = connection.recv()
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            answer: object
            try:
                logging.disable(logging.CRITICAL)  # thousands of simulated seconds have thousands of warnings
                answer = simulation.run(plan, mutant)
            except BaseException:  # noqa: BLE001 - shown by the parent
                answer = traceback.format_exc()
            try:
                connection.send(answer)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


def prepare() -> None:
    """Compiles what each fork would have to compile again: the messages of all versions."""
    from protocol.kafka import by_schema, messages
    from protocol.kafka.api_keys import SUPPORTED

    for api, versions in SUPPORTED.items():
        for version in range(versions.min, versions.max + 1):
            if version in messages.versions_with_schemas(api):
                request, response = messages.request_schema(api, version), messages.response_schema(api, version)
                by_schema.prepare(request, response)  # for the broker
                by_schema.prepare(response, request)  # for the client


if __name__ == "__main__":
    main()
