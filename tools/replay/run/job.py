"""The Spark job: `python -m tools.replay.run.job OUTPUT [STEP...]`, or the same by spark-submit (RPL-4).

The job carries out `plan.json` of the directory or the URI in steps: `replay` writes the operations, `verdict` reads the records back,
`analysis` also writes the report. A step needs only the files of earlier steps, so a later step can be repeated alone.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tools.replay.places import is_uri
from tools.replay.run.access import take_access
from tools.replay.run.analysis import analyse
from tools.replay.run.control import ControlServer
from tools.replay.run.masters import is_local
from tools.replay.run.open_places import Places
from tools.replay.run.outcome import conclude, read_verdict, say_outcome
from tools.replay.run.plan import PARENT_PIPE_VARIABLE, OutputDirectory, Plan, ReplayError, write_json
from tools.replay.run.progress import shown
from tools.replay.run.reading_back import judge
from tools.replay.run.session import PROBE, check_place, new_session, session_for_results
from tools.replay.run.stage import replay
from tools.replay.run.undone import write_undone
from tools.wire.security import Security

STEPS = ("replay", "verdict", "analysis")
SLOTS_TIMEOUT_S = 60.0
SLOTS_POLL_S = 0.2
OWN_ERROR = re.compile(r"(?:tools\.[\w.]+\.)(?:ReplayError|LoadError|TraceError|Unreachable): (.+)")
LOST_EXECUTOR = re.compile(r"ExecutorLostFailure .*")
DEAD_WORKER = "Python worker exited unexpectedly"
STANDARD_INPUT = 0


def main(arguments: list[str]) -> int:
    steps = arguments[1:] or STEPS
    if not arguments or set(steps) - set(STEPS):
        print(f"usage: python -m tools.replay.run.job OUTPUT [{'|'.join(STEPS)}]...", file=sys.stderr)
        return 2
    if PARENT_PIPE_VARIABLE in os.environ:
        threading.Thread(target=die_with_parent, name="die-with-parent", daemon=True).start()
    place = arguments[0] if is_uri(arguments[0]) else Path(arguments[0]).absolute()
    try:
        with Places.of_job() as places:
            output = places.results(place)
            if output.uri:
                places.delete(f"{output.uri}/{output.access.name}")
            return carry_out(places, output, steps)
    except ReplayError as problem:
        print(f"Error: {problem}", file=sys.stderr)
        return 1


def carry_out(places: Places, output: OutputDirectory, steps: Sequence[str]) -> int:
    """Returns the exit code. Raises ReplayError."""
    plan = output.read_plan()
    output.uri = plan.directory if is_uri(plan.directory) else ""
    security = take_access(output, plan)
    has_operations = True
    session = new_session(plan.tasks, sends="replay" in steps)
    try:
        if "replay" in steps:
            if output.uri:
                places.clear(output.uri)
                places.put(output.plan, f"{output.uri}/{output.plan.name}")
            session = send(session, plan, output, places, security)
            has_operations = any(output.operations.glob("*.parquet"))
        if "verdict" in steps and has_operations:
            judge(session, plan, output, security)
        if "analysis" in steps and has_operations:
            analysis = analyse(session, plan, output)
            if output.verdict.exists():
                conclude(output, analysis, read_verdict(output))
        for path in output.results if output.uri else ():
            if path.exists() and path not in output.tables:
                places.put(path, f"{output.uri}/{path.name}")
    finally:
        session.stop()
    return 0 if plan.control else say_outcome(output, read_verdict(output))


def send(
    session: SparkSession, plan: Plan, output: OutputDirectory, places: Places, security: Security
) -> SparkSession:
    """Sends the operations and writes `tasks.json`. If a task is lost, what was done until then is kept.

    Returns a session that reaches the operations, which are where their place is then. The given one may have ended.
    """
    done: list[dict[str, Any]] = []
    undone: list[dict[str, Any]] = []
    problem = ""
    try:
        wait_for_slots(session, plan.tasks)
        if output.uri and not is_local(session.sparkContext.master):
            check_place(session, output.uri, plan.tasks)
            places.delete(f"{output.uri}/{PROBE}")
        if plan.control:
            done = replay(session, plan, security)
        else:
            done = watched(session, plan, output, security)
    except (PySparkException, Py4JError, ReplayError) as error:
        print(error, file=sys.stderr)
        problem = reason(str(error))
    session = session_for_results(session, output)
    if any(output.operations.glob("*.parquet")):
        if output.uri:
            places.put(output.operations, f"{output.uri}/{output.operations.name}")
        if problem:
            wait_for_slots(session, 1)
            undone = write_undone(session, plan, output)
    write_json(output.tasks, {"tasks": done, "problem": problem, "undone": undone})
    return session


def watched(session: SparkSession, plan: Plan, output: OutputDirectory, security: Security) -> list[dict[str, Any]]:
    """The replay, with a control server and a line of progress in this process, as spark-submit starts it."""
    configuration = session.sparkContext.getConf()
    host = configuration.get("spark.driver.host")
    control = ControlServer(output.path, configuration.get("spark.driver.bindAddress", host), host)
    with control, shown(plan, control):
        return replay(session, replace(plan, control=control.address), security)


def wait_for_slots(session: SparkSession, tasks: int) -> None:
    """Waits until so many tasks can run at the same time. Raises ReplayError if they cannot within SLOTS_TIMEOUT_S."""
    context = session.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    deadline = time.monotonic() + SLOTS_TIMEOUT_S
    while (slots := int(context.maxNumConcurrentTasks(profile))) < tasks:
        if time.monotonic() > deadline:
            raise ReplayError(
                f"Spark has cores for {slots} of {tasks} tasks after {SLOTS_TIMEOUT_S:.0f} s; add workers, or use fewer --tasks"
            )
        time.sleep(SLOTS_POLL_S)


def reason(text: str) -> str:
    """The line of an exception of Spark that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if own := OWN_ERROR.match(line):
            return own[1]
    for line in lines:
        if lost := LOST_EXECUTOR.search(line):
            return lost[0]
    if DEAD_WORKER in text:
        return "a Python worker of Spark has died: it was killed, or its machine had no memory left"
    return lines[0] if lines else "no reason"


def die_with_parent() -> None:
    """Kills the process group when standard input closes: the parent process, which holds its other end, has ended.

    The group is this driver and its JVM; Spark's Python workers end with the JVM.
    """
    # This reads without sys.stdin, because the thread would still hold its lock when the interpreter ends.
    while os.read(STANDARD_INPUT, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
