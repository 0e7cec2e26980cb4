"""`ottla verify run` as a process of its own, and the example programs that it judges."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.cli import COMMAND
from tools.cluster.local_cluster import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"
ORDERS = (sys.executable, str(EXAMPLES / "python" / "orders.py"))
EXACTLY_ONCE = (sys.executable, str(EXAMPLES / "python" / "exactly_once.py"))


class Verified:
    def __init__(self, exit_code: int, output: str, found: dict[str, Any]) -> None:
        self.exit_code = exit_code
        self.output = output
        self.found = found

    def count(self, kind: str, client: str = "your program") -> int:
        return sum(each["count"] for each in self.found["findings"] if (each["kind"], each["client"]) == (kind, client))

    def failures(self) -> set[str]:
        return {each["kind"] for each in self.found["findings"] if each["is_failure"]}


def verify(
    cluster: LocalCluster | Sequence[str],
    directory: Path,
    options: Sequence[str],
    program: Sequence[str],
    timeout_s: float = 240,
    **env: str,
) -> Verified:
    """`cluster`: or the options that name one."""
    file = directory / "verdict.json"
    named = ["--dir", str(cluster.directory)] if isinstance(cluster, LocalCluster) else cluster
    command = [*COMMAND, "verify", "run", *named, "--json", str(file), *options, "--", *program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, env={**os.environ, **env}
    )
    print(done.stdout, done.stderr)
    return Verified(done.returncode, done.stdout, json.loads(file.read_text()))


def faults(*texts: str) -> list[str]:
    return [word for text in texts for word in ("--fault", text)]
