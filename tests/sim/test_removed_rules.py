"""Each rule that `removed_rules` takes out of the real code is missed by a unit test. (The simulation: `find_mutants`.)"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sim.removed_rules import REMOVALS

REPLICATION, CONTROLLER = "tests/unit/broker/replication", "tests/unit/controller"
CLASSIC, MANAGER = f"{REPLICATION}/test_classic_bugs.py", f"{REPLICATION}/test_replica_manager.py"
CUTS = f"{REPLICATION}/following/test_truncation.py::test_decide"
MISSED_BY = {
    "bug_1_truncation_to_the_high_watermark": CUTS,
    "bug_2_the_isr_shrinks_in_memory": f"{CLASSIC}::test_bug_2_a_shrink_counts_when_zookeeper_has_it",
    "bug_3_fetches_without_an_epoch": f"{MANAGER}::test_fencing_by_leader_epoch",
    "half_of_bug_3_no_fencing": f"{MANAGER}::test_fencing_by_leader_epoch",
    "bug_9_joining_at_the_high_watermark": f"{REPLICATION}/test_replica_state.py",
    "bug_13_the_same_leader_needs_no_truncation": f"{CLASSIC}::test_bug_13_the_same_leader_may_have_cut_its_log_meanwhile",
    "bug_14_truncation_once": CUTS,
    "bug_15_epochs_without_records_are_forgotten": f"{CLASSIC}::test_bug_15_an_epoch_without_records_is_known",
    "bug_6_isr_writes_after_a_conflict": f"{CONTROLLER}/decisions/test_leader_election.py::test_after_unseen_bounces",
    "bug_10_any_record_at_the_offset_counts": (
        f"{MANAGER}::test_a_lost_leadership_answers_the_producers_and_never_acknowledges_them_later"
    ),
    "bug_12_late_answers_are_taken": f"{CLASSIC}::test_bug_12_a_late_answer_about_an_epoch_does_not_cut",
    "bug_16_bounces_before_a_term_are_not_seen": f"{CONTROLLER}/test_takeover_steps.py::test_bounces_before_the_term",
    "flt_33_an_emptied_disk_stands_for_the_records": f"{REPLICATION}/test_missing_logs.py",
}
RUN = """
import sys, pytest
from tests.sim.removed_rules import REMOVALS
REMOVALS[sys.argv[1]](pytest.MonkeyPatch())
sys.exit(pytest.main(["-qx", "-p", "no:cacheprovider", sys.argv[2]]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("rule", REMOVALS)
def test_a_unit_test_fails_without_the_rule(rule: str) -> None:
    done = subprocess.run([sys.executable, "-c", RUN, rule, MISSED_BY[rule]], capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert " failed" in done.stdout.splitlines()[-1]
