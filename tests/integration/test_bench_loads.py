"""`ottla bench produce`, `consume`, `end-to-end` and `groups`, each for a second: that they work."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.cli import Cli
from tests.support.invariants import eventually

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

SHORT = ("--seconds", "1", "--warm-up-seconds", "0.2", "--replication-factor", "3")


@pytest.mark.parametrize(
    "load",
    [
        ("produce", "--acks", "all", "--connections", "2", "--in-flight", "2", "--partitions", "3"),
        ("produce", "--client", "librdkafka", "--record-size", "1000"),
        ("consume", "--batch-size", "4096", "--fill-bytes", "1000000"),
        ("consume", "--client", "librdkafka", "--fill-bytes", "1000000"),
        ("end-to-end",),
        ("end-to-end", "--client", "librdkafka"),
        ("groups", "--groups", "2", "--members", "5", "--rebalances", "2"),
        ("groups", "--groups", "2", "--members", "5", "--rebalances", "2", "--group-protocol", "consumer"),
        ("produce", "--topics", "5", "--partitions-per-request", "3", "--idle-connections", "20"),
    ],
    ids=" ".join,
)
def test_a_load_is_measured(cli: Cli, load: tuple[str, ...]) -> None:
    found = cli.json("bench", *load, *SHORT)
    assert found["bench"] == load[0]
    admin = AdminClient({"bootstrap.servers": cli.bootstrap_servers})
    # A deletion is answered when the controller alone has forgotten the topic.
    eventually(
        lambda: not any("bench" in topic for topic in admin.list_topics(timeout=30).topics), "its topics are gone"
    )
