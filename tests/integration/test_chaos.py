"""Kill, bounce, pause and restart of random brokers under idempotent load (`tests.support.chaos`): 4 rounds, thoroughly 30."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support import chaos
from tests.support.thorough import thorough

pytestmark = pytest.mark.integration

SEED_VARIABLE = "CHAOS_SEED"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("rounds", [4, thorough(30)])
def test_chaos(tmp_path: Path, rounds: int, capsys: pytest.CaptureFixture[str]) -> None:
    """INV-1, 5, 6, 20, 27; FLT-1, 5, 6, 8. Another seed each time: CHAOS_SEED runs one again."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(10**6))
    with chaos.chaos_cluster(tmp_path) as cluster:
        outcome = chaos.run(cluster, seed, rounds)
        assert chaos.tracebacks(cluster) == []
    with capsys.disabled():
        print(f"\nchaos: {outcome}")
