"""The settings that a group of the new kind has of its own (KIP-848)."""

from __future__ import annotations

import pytest

from broker.settings.config import BrokerConfig, ConfigError
from broker.settings.group_configs import HEARTBEAT, SESSION, GroupConfigs, check

BROKER = BrokerConfig(broker_id=1)


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({}, ""),
        ({SESSION: "60000", HEARTBEAT: "15000"}, ""),
        ({SESSION: "44999"}, "expected 45000 to 60000"),
        ({SESSION: "60001"}, "expected 45000 to 60000"),
        ({HEARTBEAT: "4999"}, "expected 5000 to 15000"),
    ],
)
def test_a_group_stays_within_the_limits_of_the_broker(configs: dict[str, str], reason: str) -> None:
    if not reason:
        check(configs, BROKER)
        return
    with pytest.raises(ConfigError, match=reason):
        check(configs, BROKER)


def test_a_session_is_longer_than_the_heartbeat_interval() -> None:
    broker = BrokerConfig(broker_id=1, group_consumer_min_session_timeout_ms=1)
    with pytest.raises(ConfigError, match=f"expected more than {HEARTBEAT}, which is 5000"):
        check({SESSION: "5000"}, broker)


def test_the_settings_follow_zookeeper() -> None:
    groups, told = GroupConfigs(), list[str]()
    groups.on_change = told.append
    groups.changed({"groups/billing": {SESSION: "50000"}, "groups/a%2Fb": {HEARTBEAT: "6000"}, "users/billing": {}})
    assert (groups.names(), groups.of("billing"), told) == (["a/b", "billing"], {SESSION: "50000"}, ["billing", "a/b"])
    groups.changed({"groups/billing": {SESSION: "none", "other": "1"}})
    assert groups.of("billing") == {SESSION: "50000"}, "an invalid value leaves the earlier one"
    groups.all_are(["groups/a%2Fb"])
    assert groups.names() == ["a/b"]
    groups.changed({"groups/a%2Fb": {}})
    assert (groups.names(), groups.of("none")) == ([], {})
