"""Quotas follow the settings, measure only who has one, and forget clients that are silent."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from broker.quotas import client_quotas
from broker.quotas.client_quotas import MutationQuota, Quotas
from broker.quotas.quota_configs import DOUBLE, INT, LONG, java_double, quota_text
from broker.settings.config import BrokerConfig
from protocol.errors import ErrorCode, KafkaError
from protocol.zk.entity_names import sanitized


def quotas(**settings: Any) -> Quotas:
    return Quotas(BrokerConfig(**settings), lambda: 0.0)


def test_nothing_is_measured_without_a_quota() -> None:
    here = quotas()
    assert not here.is_on
    here.changed({"users/alice": {"SCRAM-SHA-256": "secret"}, "ips/1.2.3.4": {"connection_creation_rate": "1"}})
    assert not here.is_on
    here.changed({"users/alice": {"producer_byte_rate": "1000"}})
    assert here.is_on
    assert here.produce.record("bob", "app", 1e9, 0) == 0
    assert here.fetch.record("alice", "app", 1e9, 0) == 0
    assert len(here.produce) == 0
    assert here.produce.record("alice", "app", 15_000, 0) == 5000
    here.changed({"users/alice": {}})
    assert not here.is_on
    assert len(here.produce) == 0


def test_clients_that_share_a_quota_wait_for_each_other() -> None:
    here = quotas()
    here.changed({"users/alice": {"producer_byte_rate": "1000"}})
    assert here.produce.record("alice", "one", 10_000, 0) == 0
    assert here.produce.record("alice", "two", 1000, 0) == 1000
    here.changed({"clients/<default>": {"producer_byte_rate": "1000"}})
    assert here.produce.record("bob", "one", 10_000, 0) == 0
    assert here.produce.record("bob", "two", 10_000, 0) == 0
    assert here.produce.record("carol", "two", 1000, 0) == 1000


def test_a_changed_quota_counts_for_what_was_used_before() -> None:
    here = quotas()
    here.changed({"clients/app": {"consumer_byte_rate": "1000"}})
    assert here.fetch.record("ANONYMOUS", "app", 10_000, 0) == 0
    assert here.fetch.in_window("ANONYMOUS", "app", 0) == 10_000
    here.changed({"clients/app": {"consumer_byte_rate": "500"}})
    assert here.fetch.record("ANONYMOUS", "app", 0, 0) == 10_000
    assert here.fetch.in_window("ANONYMOUS", "app", 0) == 5000


def test_the_time_of_requests_throttles_for_a_sample_at_most() -> None:
    here = quotas(quota_window_size_seconds=2, quota_window_num=3)
    here.changed({"clients/app": {"request_percentage": "10"}})
    assert here.request.record("ANONYMOUS", "app", 40, 0) == 0
    assert here.request.record("ANONYMOUS", "app", 10, 0) == 1000
    assert here.request.record("ANONYMOUS", "app", 1000, 0) == 2000


def test_a_value_that_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    here = quotas()
    here.changed({"clients/app": {"producer_byte_rate": "1000"}})
    with caplog.at_level(logging.WARNING):
        here.changed({"clients/app": {"producer_byte_rate": "1.5", "request_percentage": "much"}})
    assert here.produce.record("ANONYMOUS", "app", 11_000, 0) == 1000
    assert len(caplog.messages) == 2


def test_a_new_session_forgets_quotas_that_are_gone() -> None:
    here = quotas()
    here.changed({"users/a/clients/b": {"producer_byte_rate": "1"}, "clients/b": {"producer_byte_rate": "2"}})
    here.all_are(["clients/b", "users/a"])
    assert here.produce.in_window("a", "b", 0) == 20


def test_a_client_may_change_its_id_with_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is bounded, and who is throttled stays so while others make up ids."""
    monkeypatch.setattr(client_quotas, "METERS_MAX", 100)
    here = quotas()
    here.changed({"clients/<default>": {"producer_byte_rate": "1000"}})
    for number in range(1000):
        assert here.produce.record("ANONYMOUS", f"id-{number}", 1, number) == 0
        assert (here.produce.record("ANONYMOUS", "busy", 1000, number) > 0) is (number > 9)
        assert len(here.produce) <= 100
    here.produce.record("ANONYMOUS", "last", 1, 100_000)
    for number in range(100):
        here.produce.record("ANONYMOUS", f"id-{number}", 1, 100_000)
    assert len(here.produce) <= 100


def test_long_client_ids_are_not_kept() -> None:
    """32 KB of each of ten thousand clients would be too much."""
    here = quotas()
    own, other = "é" * 16_000, "é" * 15_999
    here.changed(
        {"clients/<default>": {"producer_byte_rate": "10"}, f"clients/{sanitized(own)}": {"producer_byte_rate": "9999"}}
    )
    for _ in range(2):
        assert here.produce.record("ANONYMOUS", own, 1000, 0) == 0
        assert here.produce.record("ANONYMOUS", other, 1000, 0) > 0
        assert here.produce.record("ANONYMOUS", other + "a", 1, 0) == 0
    assert max(len(entity.client_id) for entity, _ in here.produce.measured()) < 100


@pytest.mark.parametrize("rate", ["-Infinity", "-1e300"])
def test_a_negative_quota_ends_with_the_next_one(rate: str) -> None:
    here = quotas()
    here.changed({"users/a": {"controller_mutation_rate": rate}})
    with pytest.raises(KafkaError):
        MutationQuota(here, "a", "", is_strict=True).take(1)
    here.changed({"users/a": {"controller_mutation_rate": "5"}})
    MutationQuota(here, "a", "", is_strict=True).take(1)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (LONG, 1024.0, "1024"),
        (LONG, 1e15, "1000000000000000"),
        (LONG, 0.9999999, "1"),
        (INT, 10.0, "10"),
        (DOUBLE, 50.0, "50.0"),
        (DOUBLE, 0.01, "0.01"),
        (DOUBLE, 1e7, "1.0E7"),
        (DOUBLE, 12345678.5, "1.23456785E7"),
        (DOUBLE, 1e-5, "1.0E-5"),
        (DOUBLE, 1.5e300, "1.5E300"),
        (DOUBLE, -1.0, "-1.0"),
    ],
)
def test_zookeeper_gets_the_texts_of_kafka(kind: str, value: float, text: str) -> None:
    assert quota_text(kind, value) == text


@pytest.mark.parametrize(
    ("kind", "value"), [(LONG, 1.5), (LONG, -1.0), (INT, 3e9), (LONG, float("inf")), (LONG, 1e19), (INT, -0.5)]
)
def test_values_that_a_type_does_not_have(kind: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"must be a {kind} value"):
        quota_text(kind, value)


def test_doubles_that_are_no_numbers() -> None:
    assert [java_double(float(text)) for text in ("nan", "inf", "-inf")] == ["NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize(("is_strict", "taken"), [(True, [4, 4]), (False, [4, 4, 4])])
def test_changes_of_partitions(is_strict: bool, taken: list[int]) -> None:
    """KIP-599: whoever owes none may change many. A strict quota then refuses, another one makes the client wait afterwards."""
    now = 0.0
    here = Quotas(BrokerConfig(controller_quota_window_num=3), lambda: now)
    here.changed({"clients/app": {"controller_mutation_rate": "2"}})
    quota = MutationQuota(here, "ANONYMOUS", "app", is_strict=is_strict)
    for count in taken:
        quota.take(count)
    if is_strict:
        assert quota.throttle_ms() == 0, "it waits only if something is refused"
        with pytest.raises(KafkaError) as refused:
            quota.take(1)
        assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert quota.throttle_ms() == 1000
    else:
        assert quota.throttle_ms() == 3000
    now = 0.75
    assert quota.throttle_ms() == (250 if is_strict else 2250), "less what the request has waited since"
    now = 5.0
    assert quota.throttle_ms() == 0
    MutationQuota(here, "ANONYMOUS", "app", is_strict=True).take(1)
    MutationQuota(here, "ANONYMOUS", "other", is_strict=True).take(1000)
