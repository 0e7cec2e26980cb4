"""A cluster ends when its owner is killed; a cluster without an owner stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.invariants import eventually
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
STARTER = """
import signal, sys, threading
from pathlib import Path
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ownership import own_servers
from tools.cluster.guard import ClusterGuard

directory, is_owner = Path(sys.argv[1]), sys.argv[2] == "owner"
if is_owner:
    own_servers()
cluster = LocalCluster(directory)
cluster.create(brokers=2)
cluster.start()
guard = ClusterGuard(directory) if is_owner else None
cluster.stop_broker(2)
restart = threading.Thread(target=cluster.start_broker, args=(2,))
restart.start()
restart.join()
cluster.wait_ready()
print(guard._process.pid if guard else 0, flush=True)
signal.pause()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    found = LocalCluster(tmp_path / "cluster")
    yield found
    found.destroy()


@pytest.mark.parametrize("role", ["owner", "starter"])
def test_a_cluster_ends_with_its_owner(cluster: LocalCluster, role: str) -> None:
    """The owner's process group and its guard get SIGKILL. The end of a thread that started a broker does not end the broker."""
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(cluster.directory), role],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        start_new_session=True,
    )
    with starter:
        assert starter.stdout is not None
        guard = int(starter.stdout.readline())
        assert [process.name for process in cluster.running()] == ["broker 1", "broker 2", "ZooKeeper"]
        os.killpg(starter.pid, signal.SIGKILL)
        if guard:
            os.kill(guard, signal.SIGKILL)
    if role == "owner":
        eventually(lambda: cluster.running() == [], "all have ended")
    else:
        cluster.wait_ready()
        assert len(cluster.running()) == 3
