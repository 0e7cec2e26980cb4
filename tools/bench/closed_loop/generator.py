"""Runs a plan with the C program `generator.c`, which is compiled where it is used, and kept for the user."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from protocol.errors import ErrorCode, error_name
from tools.bench.closed_loop.measurement import BenchError, Measurement, OnProgress, Progress, answered, silent
from tools.bench.closed_loop.request_plan import Plan
from tools.user_cache import user_cache

SOURCE = Path(__file__).with_name("generator.c")
FLAGS = ("-O2", "-std=gnu11")
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


def generate(plan: Plan, on_progress: OnProgress = silent) -> Measurement:
    """Runs the plan in a process that ends with this one. Raises BenchError."""
    program = compiled_program(SOURCE)
    with tempfile.TemporaryFile(prefix="ottla-load-") as plan_file:
        plan_file.write(plan.encoded())
        plan_file.seek(0)
        with subprocess.Popen([program], stdin=plan_file, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    said = json.loads(line)
                    if "failure" in said:
                        raise BenchError(reason(plan, said["failure"], said["connection"], said["number"]))
                    if "second" not in said:
                        return answered(Measurement(**said))
                    on_progress(Progress(said["second"], said["requests"], said["records"], said["bytes"]))
            finally:
                process.kill()
    raise BenchError("the load generator was killed")


def reason(plan: Plan, failure: str, connection: int, number: int) -> str:
    """One line for a person. `connection` is its number in the plan, or -1; `number` an errno, an error code of Kafka, or 0."""
    host, port = plan.connections[connection].address if connection >= 0 else ("?", 0)
    where = f"{host}:{port}"
    match failure:
        case "connect":
            return f"{where} cannot be reached: {os.strerror(number) if number else 'no answer'}"
        case "closed":
            return f"{where} closed a connection; its log may say why"
        case "code":
            advice = ADVICE.get(number)  # type: ignore[call-overload]
            return f"{where} answers {error_name(number)}" + (f": {advice}" if advice else "")
        case "malformed":
            return f"{where} sends an answer that is not of the version of its request"
        case "foreign batch":
            return "somebody else writes to the topic, so records cannot be told apart: use another topic"
        case "memory":
            return "the load generator has too little memory"
        case _:
            return f"the load generator ended early ({failure})"


def compiled_program(source: Path) -> Path:
    """The program of exactly this source, from the user's cache, where it is put first if it is not there. Raises BenchError."""
    digest = hashlib.sha256(source.read_bytes() + " ".join(FLAGS).encode()).hexdigest()
    try:
        program = user_cache() / f"{source.stem}-{digest[:16]}"
        if not program.exists():
            _compile(source, program)
    except OSError as problem:
        raise BenchError(f"the user's cache cannot be used: {problem}") from None
    return program


def _compile(source: Path, program: Path) -> None:
    """Raises BenchError, OSError."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise BenchError("raw requests need a C compiler (cc), and there is none; --client librdkafka needs none")
    handle, unfinished = tempfile.mkstemp(dir=program.parent)
    os.close(handle)
    try:
        done = subprocess.run(
            [compiler, *FLAGS, "-o", unfinished, str(source)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchError(f"{compiler} fails: {(done.stderr.splitlines() or ['it says nothing'])[0]}")
        os.replace(unfinished, program)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
