"""The verdict has the planted losses, doubles and disorder, and nothing else."""

from __future__ import annotations

import pytest

from tools.faults.verdict import Journal, Place, Verdict, longest_gap

LOG = {(0, 0): b"record-0", (1, 0): b"record-1", (0, 1): b"record-2", (1, 1): b"record-3-x"}
GOOD = {value: place for place, value in LOG.items()}
NO_OFFSET = GOOD | {b"record-2": (0, None)}


@pytest.mark.parametrize(
    ("positions", "log", "lost", "doubled", "out_of_order"),
    [
        pytest.param(GOOD, LOG, [], 0, 0, id="all is right"),
        pytest.param({}, LOG, [], 0, 0, id="more than was acknowledged"),
        pytest.param(GOOD, {**LOG, (0, 2): b"of another"}, [], 0, 0, id="records of somebody else"),
        pytest.param(GOOD, {k: v for k, v in LOG.items() if k != (0, 1)}, ["record-2"], 0, 0, id="the end is cut"),
        pytest.param(GOOD, {**LOG, (0, 1): b"record-4"}, ["record-2"], 0, 0, id="another record at its offset"),
        pytest.param(GOOD, {**LOG, (0, 2): b"record-2"}, [], 1, 0, id="twice"),
        pytest.param(GOOD, {**LOG, (0, 2): b"record-0"}, [], 1, 1, id="twice, and behind a later one"),
        pytest.param({}, {(0, 0): b"record-2", (0, 1): b"record-0"}, [], 0, 1, id="out of order"),
        pytest.param({}, {(0, 0): b"r-5", (0, 1): b"r-1", (0, 2): b"r-3"}, [], 0, 2, id="two out of order"),
        pytest.param(NO_OFFSET, LOG, [], 0, 0, id="no offset is known"),
        pytest.param(NO_OFFSET, LOG | {(1, 5): b"record-2"}, [], 1, 1, id="no offset, and also elsewhere"),
        pytest.param(
            {b"record-2": (0, None)},
            {(1, 1): b"record-2"},
            ["record-2"],
            0,
            0,
            id="no offset, in another partition only",
        ),
        pytest.param(GOOD, {}, ["record-0", "record-1", "record-2", "record-3-x"], 0, 0, id="everything is lost"),
    ],
)
def test_planted_faults_are_found(
    positions: dict[bytes, tuple[int, int | None]],
    log: dict[Place, bytes],
    lost: list[str],
    doubled: int,
    out_of_order: int,
) -> None:
    verdict = Verdict.of(Journal(len(positions), positions, [0.0] * len(positions)), log)
    assert (list(verdict.lost), verdict.doubled, len(verdict.out_of_order)) == (lost, doubled, out_of_order)
    assert len(verdict.problems(once_and_in_order=False)) == bool(lost)
    assert len(verdict.problems(once_and_in_order=True)) == bool(lost) + bool(doubled) + bool(out_of_order)


def test_failures_are_problems_and_named() -> None:
    verdict = Verdict.of(Journal(4, {b"record-0": (0, 0)}, [1.0], ["timed out", "timed out"]), {(0, 0): b"record-0"})
    assert verdict.failed == ("timed out", "timed out", "no answer")
    assert verdict.problems(once_and_in_order=False) == ["3 records failed, among them timed out, no answer"]


def test_verdicts_can_be_added() -> None:
    one = Verdict(3, ("a",), 1, ("b",), ("c",), 0.25)
    both = one + Verdict(4, ("d",), 2, ("e",), ("f",), 0.5)
    assert both == Verdict(7, ("a", "d"), 3, ("b", "e"), ("c", "f"), 0.5)
    assert str(both) == (
        "7 acknowledged: lost 2, doubled 3, out of order 2; longest time without an acknowledgement 0.50 s"
    )


@pytest.mark.parametrize(
    ("since", "until", "gap"),
    [(0, 99, 8.0), (8.9, 99, 8.0), (9.0, 99, 2.5), (9.5, 10, 1.0), (12.5, 99, 0.0), (0, 1, 0.0)],
)
def test_a_gap_counts_if_it_overlaps_the_time(since: float, until: float, gap: float) -> None:
    assert longest_gap([1.0, 9.0, 10.0, 12.5], since, until) == gap


@pytest.mark.parametrize(("since", "outage_s"), [(10.0, 2.1), (1.0, 8.0), (99.0, 0.0)])
def test_the_outage_is_the_longest_of_any_partition(since: float, outage_s: float) -> None:
    times = [(0, 1.0), (0, 9.0), (1, 9.9), (0, 10.0), (0, 10.5), (1, 12.0), (1, 12.1)]
    positions = {b"%d" % number: (partition, number) for number, (partition, _) in enumerate(times)}
    assert Journal(0, positions, [at for _, at in times]).outage_s(since) == pytest.approx(outage_s)
