"""The metrics of quotas: who uses how much, and waits how long, and that reading them changes nothing (OBS)."""

from __future__ import annotations

import pytest

from broker.metrics.quotas import quota_section
from broker.quotas.client_quotas import MutationQuota, Quotas
from broker.settings.config import BrokerConfig
from protocol.errors import KafkaError


def test_what_clients_use() -> None:
    now = 0.0
    quotas = Quotas(BrokerConfig(controller_quota_window_num=2), lambda: now)
    quotas.changed(
        {
            "users/a%20b": {"producer_byte_rate": "1000", "controller_mutation_rate": "2"},
            "clients/app": {"consumer_byte_rate": "100"},
        }
    )
    quotas.produce.record("a b", "x", 15_000, 0)
    quotas.fetch.record("other", "app", 500, 0)
    mutations = MutationQuota(quotas, "a b", "y", is_strict=True)
    mutations.take(10)
    with pytest.raises(KafkaError):
        mutations.take(1)
    lines = "".join(quota_section(quotas)).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'kafka_server_quota_byte_rate{resource="Produce",user="a b",clientId=""} 1500.0',
        'kafka_server_quota_byte_rate{resource="Fetch",user="",clientId="app"} 50.0',
        'kafka_server_quota_tokens{resource="ControllerMutation",user="a b",clientId=""} -6.0',
        'kafka_server_quota_throttle_time{resource="Produce",user="a b",clientId=""} 5000',
        'kafka_server_quota_throttle_time{resource="Fetch",user="",clientId="app"} NaN',
        'kafka_server_quota_throttle_time{resource="ControllerMutation",user="a b",clientId=""} 3000',
        'ottla_quota_throttled_requests_total{resource="Produce"} 1',
        'ottla_quota_throttled_requests_total{resource="Fetch"} 0',
        'ottla_quota_throttled_requests_total{resource="Request"} 0',
        'ottla_quota_throttled_requests_total{resource="ControllerMutation"} 1',
    ]
    now = 60.0
    later = "".join(quota_section(quotas))
    assert 'byte_rate{resource="Produce",user="a b",clientId=""} 0.0' in later
    assert 'throttle_time{resource="Produce",user="a b",clientId=""} NaN' in later
    now = 1.0
    assert quotas.produce.record("a b", "x", 0, 1000) == 5000, "a look at a later time has taken nothing away"
