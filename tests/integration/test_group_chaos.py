"""Thirty rounds of kill, stop, bounce and pause of coordinators, leaders and members: see `tests.support.group_chaos`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support import chaos, group_chaos

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

ROUNDS = 30
SEED_VARIABLE = "GROUP_CHAOS_SEED"


@pytest.mark.timeout(600)
def test_group_chaos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CLI-2, LAI-5, INV-23, INV-24, BUG-25. Another seed each time: GROUP_CHAOS_SEED runs one again."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(10**6))
    with chaos.chaos_cluster(tmp_path, group_chaos.SETTINGS) as cluster:
        outcome = group_chaos.run(cluster, seed, ROUNDS)
        assert chaos.tracebacks(cluster) == []
    with capsys.disabled():
        print(f"\ngroup chaos: {outcome}")
