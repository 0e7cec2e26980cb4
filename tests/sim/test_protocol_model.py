"""The replication protocol under random schedules: INV-1, 2, 4, 5, 6, 7, 11, 13, 19 over 10^6 steps, and BUG-1, 2, 3, 9, 13, 14, 15, 16.

`make test` takes half of the steps of one seed and the removals that are found soon, `make test-thorough` all seeds and the other removals.

`tests/sim/protocol_model.py` says what a step is. A failing run names its seed; `Episode.begin(seed).run(EPISODE_STEPS)` is it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from tests.sim.protocol_model import EPISODE_STEPS, FAULTS, WORK, Episode, run
from tests.sim.removed_rules import REMOVALS
from tests.support.thorough import thorough

SEEDS = range(10)
STEPS_PER_SEED = 100_000
STEPS_TO_FIND = 100_000
FOUND_LATE = {
    "bug_16_bounces_before_a_term_are_not_seen",
    "bug_13_the_same_leader_needs_no_truncation",
    "bug_6_isr_writes_after_a_conflict",
    "half_of_bug_3_no_fencing",
    "bug_12_late_answers_are_taken",
    "bug_3_fetches_without_an_epoch",
}
"""The removals that take seconds to find."""


@pytest.fixture(autouse=True)
def no_logs() -> Iterator[None]:
    """Each step would log a line or two."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


@pytest.mark.parametrize(
    ("seed", "steps"), [(0, STEPS_PER_SEED // 2), *(thorough(seed, STEPS_PER_SEED) for seed in SEEDS)]
)
def test_the_invariants_hold(seed: int, steps: int) -> None:
    """10^6 steps over all seeds."""
    begun = time.perf_counter()
    result = run(seed, steps)
    speed = result.steps / (time.perf_counter() - begun)
    print(f"seed {seed}: {result.steps} steps, {result.episodes} episodes, {speed:.0f} steps/s, {result.counts}")
    assert result.violation is None, f"{result.violation} (episode {result.seed})"
    assert result.counts.keys() == WORK.keys() | FAULTS.keys() | {"empty"}  # none of the steps is never possible
    assert result.acknowledged > 1000


@pytest.mark.parametrize("rule", [thorough(rule) if rule in FOUND_LATE else rule for rule in REMOVALS])
def test_a_rule_that_is_taken_out_is_missed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """BUG-1, 2, 3, 6, 9, 10, 12, 13, 14, 15, 16: each is found within 10^5 steps."""
    REMOVALS[rule](monkeypatch)
    result = run(1, STEPS_TO_FIND)
    print(f"{rule}: after {result.steps} steps, in episode {result.seed}: {result.violation}")
    assert result.violation is not None


def test_a_seed_is_a_schedule() -> None:
    first, second = Episode.begin("again"), Episode.begin("again")
    assert first.run(EPISODE_STEPS) == second.run(EPISODE_STEPS)
    assert first.counts == second.counts
    assert [repr(broker.nodes) for broker in first.brokers] == [repr(broker.nodes) for broker in second.brokers]


@pytest.mark.parametrize("others_bounce", [False, True])
def test_a_new_controller_sees_that_a_leader_lost_records_and_came_back(others_bounce: bool) -> None:
    """INV-5, FLT-24: the leader loses power, and with it records that a follower has.

    It returns before the controller has noticed its death, and a new controller, which finds it registered, takes over. If it led on in
    the same epoch, it would write other records at the same offsets, and no epoch would distinguish them.
    """
    episode = Episode.begin("loss")
    leader_id = episode.controller.replicas[0]
    leader = episode.brokers[leader_id - 1]
    follower = next(broker for broker in episode.brokers if broker is not leader)

    def tell() -> None:
        for broker in episode.brokers:
            queue = episode.controller.queues[broker.id]
            while queue:
                broker.take(queue.popleft())

    def fetch() -> None:
        for _ in range(3):
            follower.ask()
            for key in list(follower.questions):
                leader.serve(follower.questions[key], may_park=False)
                follower.deliver(key)

    tell()
    leader.produce(1, acks=1)
    leader.produce(2, acks=1)
    fetch()
    assert follower.nodes == leader.nodes
    episode.checks.is_clean = False
    leader.kill()
    leader.lose_unsynced(1)
    leader.start(episode.zookeeper.register(leader_id))
    if others_bounce:
        for broker in episode.brokers:
            if broker is not leader:
                broker.kill()
                broker.start(episode.zookeeper.register(broker.id))
    episode.controller.take_office()
    state = episode.zookeeper.state
    assert state is not None
    assert state.leader_epoch == 1
    if others_bounce:
        assert (state.leader, set(state.isr)) == (leader_id, {1, 2, 3})
    else:
        assert state.leader != leader_id
        assert set(state.isr) == {1, 2, 3} - {leader_id}
    tell()
    assert not leader.is_leader_of(0)
    if others_bounce:
        leader.produce(3, acks=1)
        fetch()
        assert [node.epoch for node in leader.nodes] == [0, 1]
        assert follower.nodes == leader.nodes, "it cut what the leader lost"
    episode.run(EPISODE_STEPS)
