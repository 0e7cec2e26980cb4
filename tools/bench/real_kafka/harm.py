"""The `--fault-command` of a real Kafka of `running.py`: kills its brokers, and starts them again.

    python -m tools.bench.real_kafka.harm SOCKET ACTION BROKER HOST PORT

The process that started the brokers does it, so that they end with it, also those that were started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from protocol import json_lines
from tools.bench.real_kafka.running import RealKafka, Server

STOP_TIMEOUT_S = 60.0
"""For a clean stop: Kafka waits for other brokers to lead."""


@contextlib.contextmanager
def harmable(kafka: RealKafka, directory: Path) -> Iterator[str]:
    """Yields the command, as it is typed. Raises OSError if its socket cannot be made in `directory`."""
    path = directory / "harm"
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="harm of Kafka", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(json_lines.serve(path, partial(_answer, kafka)), loop).result()
        yield shlex.join((sys.executable, "-m", __name__, str(path.absolute())))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        path.unlink(missing_ok=True)


def _answer(kafka: RealKafka, line: bytes) -> dict[str, str]:
    try:
        asked: dict[str, Any] = json.loads(line)
        server = kafka.brokers.get(int(asked["broker"]))
        if server is None:
            raise ValueError(f"this Kafka has no broker {asked['broker']}")
        _do(server, asked["action"])
    except (OSError, ValueError, LookupError, TypeError, subprocess.TimeoutExpired) as problem:
        return {"error": str(problem)}
    return {}


def _do(server: Server, action: str) -> None:
    """Raises ValueError for an action that is not possible here, OSError if Java cannot be started, TimeoutExpired."""
    match action:
        case "kill":
            server.end()
        case "stop":
            server.send(signal.SIGTERM)
            if server.process is not None:
                server.process.wait(STOP_TIMEOUT_S)
        case "start":
            server.start()
        case "pause":
            server.send(signal.SIGSTOP)
        case "resume":
            server.send(signal.SIGCONT)
        case _:
            raise ValueError(f"{action} is not possible here: only kill, stop, start, pause and resume are")


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    try:
        path, action, broker = arguments[:3]
    except ValueError:
        print("SOCKET ACTION BROKER HOST PORT", file=sys.stderr)
        return 2
    try:
        json_lines.ask(Path(path), {"action": action, "broker": broker}, STOP_TIMEOUT_S + json_lines.ANSWER_TIMEOUT_S)
    except json_lines.NoAnswer as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
