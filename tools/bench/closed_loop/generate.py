"""Runs a plan with the C program, or in Python where that cannot be. Errors are lines for a person."""

from __future__ import annotations

import os
from collections.abc import Callable

from protocol.errors import ErrorCode, error_name
from tools.bench.closed_loop import c_generator, python_generator
from tools.bench.closed_loop.measurement import BenchError, Measurement, OnProgress, answered, silent
from tools.bench.closed_loop.request_plan import LoadFailed, Plan
from tools.bench.closed_loop.target import Target

ADVICE = {
    ErrorCode.NOT_ENOUGH_REPLICAS: "acks=all needs more replicas in sync: see min.insync.replicas and `ottla topic describe`",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "too few replicas stay in sync: see `ottla topic describe`",
    ErrorCode.MESSAGE_TOO_LARGE: "the batch is larger than max.message.bytes of the topic",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "another broker was elected, or this one stood still and "
    "acknowledges nothing until ZooKeeper confirms its session; `ottla timeline` tells which",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the topic was deleted during the measurement",
    ErrorCode.OFFSET_OUT_OF_RANGE: "records were deleted during the measurement",
    ErrorCode.INVALID_RECORD: "the topic does not take these records; is it compacted?",
    ErrorCode.UNSUPPORTED_VERSION: "it does not serve this version of Produce or Fetch: see --api-version",
}

OnNote = Callable[[str], None]


def unheard(_: str) -> None:
    """For callers that want no notes."""


def generate(plan: Plan, target: Target, on_progress: OnProgress = silent, on_note: OnNote = unheard) -> Measurement:
    """Runs the plan. `on_note` is told if the load is made in Python, and why. Raises BenchError."""
    try:
        if target.security.protocol != "PLAINTEXT":
            on_note(f"The load is made in Python, because the C program does not speak {target.security.protocol}.")
            found = python_generator.run(plan, target.security, on_progress)
        else:
            try:
                program = c_generator.compiled_program()
            except c_generator.NotCompiled as problem:
                on_note(f"The load is made in Python, because {problem}. It takes more of the machine's time.")
                found = python_generator.run(plan, target.security, on_progress)
            else:
                found = c_generator.run(plan, program, on_progress)
    except LoadFailed as problem:
        raise BenchError(failure(problem, plan)) from None
    return answered(found)


def failure(problem: LoadFailed, plan: Plan) -> str:
    """One line for a person."""
    host, port = plan.connections[problem.connection].address if problem.connection >= 0 else ("?", 0)
    where = f"{host}:{port}"
    match problem.what:
        case "connect":
            return f"{where} cannot be reached: {os.strerror(problem.number) if problem.number else 'no answer'}"
        case "closed":
            return f"{where} closed a connection; its log may say why"
        case "code":
            advice = ADVICE.get(problem.number)  # type: ignore[call-overload]
            return f"{where} answers {error_name(problem.number)}" + (f": {advice}" if advice else "")
        case "malformed":
            return f"{where} sends an answer that is not of the version of its request"
        case "foreign batch":
            return "somebody else writes to the topic, so records cannot be told apart: use another topic"
        case "memory":
            return "the load generator has too little memory"
        case _:
            return f"the load generator ended early ({problem.what})"
