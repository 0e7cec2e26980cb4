"""Each attack once against three brokers that serve a canary meanwhile: it waits little, nobody dies, memory comes back.

`python -m tests.hostile.live` runs them for hours, with the goal's half a second; here a slow machine gets more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.attacks import ATTACKS
from tests.hostile.live import LiveRun, live_run
from tests.support.invariants import assert_healed

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

WAIT_MAX_S = 3.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    with live_run(tmp_path_factory.mktemp("hostile") / "cluster", wait_max_s=WAIT_MAX_S) as running:
        yield running


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_the_others_are_served(run: LiveRun, name: str) -> None:
    report = run.play(ATTACKS[name])
    print(report)
    assert not report.harm


def test_nothing_is_lost_or_different(run: LiveRun) -> None:
    """After all of them: what the canary was acknowledged it reads in order, and every replica has the same."""
    assert_healed(run.cluster, run.zk, "canary")
    assert_healed(run.cluster, run.zk, "full")
    row = run.canary.mark()
    assert not row["faults"]
    assert row["tasks_ended"] == 0
