"""The Spark job: `python -m tools.replay.run.job OUTPUT_DIRECTORY [STEP...]`, or the same by spark-submit (RPL-4).

The job carries out `plan.json` of the directory in steps: `replay` writes the operations, `verdict` reads the records back. A step
needs only the files of earlier steps, so a later step can be repeated alone.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tools.replay.run.access import take_access
from tools.replay.run.analysis import analyse
from tools.replay.run.control import ControlServer
from tools.replay.run.outcome import conclusion_of, read_verdict
from tools.replay.run.plan import PARENT_PIPE_VARIABLE, OutputDirectory, Plan, ReplayError, write_json
from tools.replay.run.progress import shown
from tools.replay.run.reading_back import judge
from tools.replay.run.session import new_session
from tools.replay.run.stage import replay
from tools.replay.run.undone import write_undone
from tools.wire.security import Security

STEPS = ("replay", "verdict", "analysis")
SLOTS_TIMEOUT_S = 60.0
SLOTS_POLL_S = 0.2
OWN_ERROR = re.compile(r"(?:tools\.[\w.]+\.)(?:ReplayError|LoadError|TraceError|Unreachable): (.+)")
LOST_EXECUTOR = re.compile(r"ExecutorLostFailure .*")
STANDARD_INPUT = 0


def main(arguments: list[str]) -> int:
    steps = arguments[1:] or STEPS
    if not arguments or set(steps) - set(STEPS):
        print(f"usage: python -m tools.replay.run.job OUTPUT_DIRECTORY [{'|'.join(STEPS)}]...", file=sys.stderr)
        return 2
    if PARENT_PIPE_VARIABLE in os.environ:
        threading.Thread(target=die_with_parent, name="die-with-parent", daemon=True).start()
    output = OutputDirectory(Path(arguments[0]).absolute())
    plan = output.read_plan()
    try:
        security = take_access(output, plan)
    except ReplayError as problem:
        print(f"Error: {problem}", file=sys.stderr)
        return 1
    session = new_session(plan.tasks, sends="replay" in steps)
    try:
        if "replay" in steps:
            send(session, plan, output, security)
        if "verdict" in steps and any(output.operations.glob("*.parquet")):
            judge(session, plan, output, security)
        if "analysis" in steps and any(output.operations.glob("*.parquet")):
            analyse(session, plan, output)
    finally:
        session.stop()
    return 0 if plan.control else say_outcome(output)


def send(session: SparkSession, plan: Plan, output: OutputDirectory, security: Security) -> None:
    """Sends the operations and writes `tasks.json`. If a task is lost, what was done until then is kept."""
    done: list[dict[str, Any]] = []
    undone: list[dict[str, Any]] = []
    problem = ""
    try:
        wait_for_slots(session, plan.tasks)
        if plan.control:
            done = replay(session, plan, security)
        else:
            done = watched(session, plan, output, security)
    except (PySparkException, Py4JError, ReplayError) as error:
        print(error, file=sys.stderr)
        problem = reason(str(error))
        if any(output.operations.glob("*.parquet")):
            wait_for_slots(session, 1)
            undone = write_undone(session, plan, output)
    write_json(output.tasks, {"tasks": done, "problem": problem, "undone": undone})


def watched(session: SparkSession, plan: Plan, output: OutputDirectory, security: Security) -> list[dict[str, Any]]:
    """The replay, with a control server and a line of progress in this process, as spark-submit starts it."""
    configuration = session.sparkContext.getConf()
    host = configuration.get("spark.driver.host")
    control = ControlServer(output.path, configuration.get("spark.driver.bindAddress", host), host)
    with control, shown(plan, control):
        return replay(session, replace(plan, control=control.address), security)


def say_outcome(output: OutputDirectory) -> int:
    """Prints the measurements and the verdict, and returns the exit code, for a job that nobody watches."""
    try:
        verdict = read_verdict(output)
    except ReplayError as problem:
        print(f"Error: {problem}", file=sys.stderr)
        return 1
    conclusion = conclusion_of(output, verdict)
    for line in [*conclusion.measured, *conclusion.outcome]:
        print(line)
    print(f"\nReport   ottla replay report {output.path}")
    return conclusion.exit_code


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
