"""`ottla verify run` with a group of the new kind whose members come and go, while its coordinator is killed (INV-23, INV-24)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.real_kafka import skip_without_kafka
from tests.support.thorough import release
from tests.support.verified import EXAMPLES, faults, verify

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(600)]

EVERY_S = 10
"""The time between two kills: longer than the session, which begins anew with each coordinator."""
CLUSTER = [
    *("--as", "4", "--override", "group.consumer.session.timeout.ms=4000"),
    *("--override", "group.consumer.heartbeat.interval.ms=500"),
]
OPTIONS = [
    *("--topic", "orders:40", "--no-load", "--grace", "60", "--allow", "unrecovered"),
    *(
        "--unowned-after",
        "30",
    ),  # a busy machine elects and loads for seconds; a partition that is forgotten stays without an owner
]


@pytest.mark.parametrize("language", ["python", pytest.param("java", marks=pytest.mark.kafka)])
@pytest.mark.parametrize("kills", [4, release(20)])
def test_each_partition_has_one_owner(tmp_path: Path, language: str, kills: int) -> None:
    """20 members at most, one more or less each second. Nothing is lost or unread, no partition has two owners, no commit goes back."""
    if language == "java":
        command = skip_without_kafka(kraft=True).command(str(EXAMPLES / "java" / "Members.java"), "consumer", "20")
    else:
        command = [sys.executable, str(EXAMPLES / "python" / "members.py"), "--group-protocol", "consumer"]
    texts = [f"bounce coordinator of billing at {EVERY_S * (number + 1)}s" for number in range(kills)]
    verified = verify(CLUSTER, tmp_path, [*faults(*texts), *OPTIONS], command, timeout_s=500)
    assert verified.exit_code == 0, verified.output
    assert [each["error"] for each in verified.found["faults"] if each["verb"] == "bounce"] == [""] * kills
    (client,) = verified.found["clients"]
    assert client["reports"]["consumed"] >= client["reports"]["acked"] > 100 * kills
