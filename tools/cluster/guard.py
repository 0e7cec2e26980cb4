"""Stops a cluster when the process that started it has ended, even by a crash or a kill.

`python -m tools.cluster.guard RUN_DIRECTORY`: its standard input is a pipe whose other end the starter holds, so it closes when
the starter ends. Linux needs no guard (`tools.cluster.ownership`). Elsewhere brokers and ZooKeeper outlive their starter, as
`ottla cluster start` needs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.cluster.local_cluster import LocalCluster

SOURCE_ROOT = Path(__file__).resolve().parents[2]
STANDARD_INPUT = 0


class ClusterGuard:
    """Guards the cluster of a run directory, which need not exist yet, until `stop`."""

    def __init__(self, directory: Path) -> None:
        """Starts the guard in its own session: a Ctrl-C or the end of a terminal is for the starter."""
        paths = [str(SOURCE_ROOT), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.cluster.guard", str(directory.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,
        )

    def stop(self) -> None:
        """Ends the guard. Stop the cluster first: processes that still run are no longer guarded."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def main(arguments: list[str]) -> int:
    while os.read(STANDARD_INPUT, 1):
        pass
    LocalCluster(Path(arguments[0])).stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
