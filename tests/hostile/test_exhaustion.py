"""Something runs out: connections, memory. The canary and replication go on, and the log says why in plain words.

Descriptors: test_descriptors.py. A full disk: tests/integration/test_failed_disks.py.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.attacks import ATTACKS, Target, connections, new_topic_works
from tests.hostile.live import live_run
from tests.support.invariants import assert_healed

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

WAIT_MAX_S = 10.0
"""Other tests take the processor meanwhile. A broker that is stuck keeps the canary waiting for longer."""
CONNECTIONS = 10_000
MEMORY_LIMIT_MIB = 400
BUDGETS = {
    "queued.max.response.bytes": str(32 << 20),
    "queued.max.request.bytes": str(64 << 20),
    "group.memory.max.bytes": str(64 << 20),
    "max.incremental.fetch.session.cache.partitions": "20000",
}
"""What clients can take of so little (docs/OPERATING.md)."""
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
MEMORY_ATTACKS = ("unread_answers", "slow_senders", "bombs", "repeated_names", "fetch_sessions", "pending_members")


def test_ten_thousand_connections(tmp_path: Path) -> None:
    """BAD-34: a broker that has descriptors for them serves on beside them; half of them have begun a request."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < CONNECTIONS + 1000:
        pytest.skip(f"a process here may not have {CONNECTIONS} descriptors: raise `ulimit -n`")

    def ten_thousand(target: Target) -> str | None:
        with connections(target.cluster.port(2), CONNECTIONS) as opened:
            for connection in opened[::2]:
                with contextlib.suppress(OSError):
                    connection.send(b"\x00\x00\x10")
            return new_topic_works(target) or (
                None if len(opened) == CONNECTIONS else f"only {len(opened)} connections were taken"
            )

    with live_run(tmp_path / "cluster", wait_max_s=WAIT_MAX_S) as run:
        report = run.play(ten_thousand)
        print(report)
        assert not report.harm


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group (v1) for one broker."""
    group = MEMORY_GROUPS / f"ottla-hostile-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(f"{MEMORY_LIMIT_MIB}M")
    except OSError as error:
        pytest.skip(f"no control group for memory can be made here: {error.strerror}")
    yield group
    with contextlib.suppress(OSError):
        group.rmdir()


def test_a_limit_of_memory_holds(tmp_path: Path, memory_group: Path) -> None:
    """Whatever costs memory is played against a broker that the kernel would end at 400 MiB."""
    with live_run(tmp_path / "cluster", wait_max_s=WAIT_MAX_S, overrides=BUDGETS) as run:
        (memory_group / "cgroup.procs").write_text(str(run.cluster.pid(1)))
        for name in MEMORY_ATTACKS:
            report = run.play(ATTACKS[name])
            print(report)
            assert not report.harm
        assert_healed(run.cluster, run.zk, "canary")
