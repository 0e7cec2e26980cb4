"""How long a new connection waits by the rates of the broker and of its listener (KIP-612)."""

from __future__ import annotations

import pytest

from broker.quotas.creation_rates import CreationRates
from broker.settings.config import BrokerConfig

LISTENERS = ("INTERNAL", "CLIENTS", "OTHERS")


class World:
    """Windows of two full samples of a second: so two seconds' worth may come at once."""

    def __init__(self, rate: int = 2**31 - 1, of_brokers: str | None = None, **of_listeners: int) -> None:
        self.now = 0.0
        self.rates = CreationRates(config(rate, **of_listeners), lambda: self.now, LISTENERS, of_brokers)

    def until_it_waits(self, listener: str) -> tuple[int, int]:
        """(how many connections come in without waiting, milliseconds that the next one waits)"""
        for number in range(200):
            if wait_ms := self.rates.wait_ms(listener):
                return number, wait_ms
        return 200, 0


def config(rate: int = 2**31 - 1, **of_listeners: int) -> BrokerConfig:
    limits = {f"listener.name.{name}.max.connection.creation.rate": of_one for name, of_one in of_listeners.items()}
    return BrokerConfig(quota_window_num=3, max_connection_creation_rate=rate, limits_of_listeners=limits)


def test_one_above_the_rate_waits_until_the_rate_is_within_it() -> None:
    world = World(5)
    assert world.until_it_waits("CLIENTS") == (10, 200), "11 in 2 s: 0.2 s more make it 5 in a second"
    world.now = 0.2
    assert world.until_it_waits("CLIENTS") == (0, 200), "the one that waited counts"


def test_nobody_waits_without_a_rate() -> None:
    assert World().until_it_waits("CLIENTS") == (200, 0)


def test_nobody_waits_for_more_than_a_sample() -> None:
    assert World(0).until_it_waits("CLIENTS") == (0, 1000)


def test_all_listeners_share_the_rate_of_the_broker() -> None:
    world = World(5)
    assert world.until_it_waits("CLIENTS")[0] == 10
    assert world.until_it_waits("OTHERS")[0] == 0


@pytest.mark.parametrize(("of_all", "own", "admitted"), [(5, 2, 4), (5, 9, 10), (2**31 - 1, 9, 18), (0, 9, 0)])
def test_the_lower_rate_counts(of_all: int, own: int, admitted: int) -> None:
    assert World(of_all, clients=own).until_it_waits("CLIENTS")[0] == admitted


def test_the_listener_of_the_brokers_counts_for_itself() -> None:
    world = World(5, of_brokers="INTERNAL")
    assert world.until_it_waits("CLIENTS")[0] == 10
    assert world.until_it_waits("INTERNAL")[0] == 10, "it has the same rate for itself, as in Kafka"
    world = World(5, of_brokers="INTERNAL", internal=100)
    assert world.until_it_waits("INTERNAL")[0] == 200
    assert world.until_it_waits("CLIENTS")[0] == 10, "those of brokers do not count as the broker's"


def test_a_new_rate_counts_from_the_next_connection_on() -> None:
    world = World()
    assert world.until_it_waits("CLIENTS") == (200, 0)
    world.rates.changed(config(10))
    assert world.until_it_waits("CLIENTS") == (0, 1000), "what came before was counted"
    world.now = 100.0
    assert world.until_it_waits("CLIENTS")[0] == 20


def test_one_that_is_refused_for_its_address_does_not_count() -> None:
    world = World(5)
    for _ in range(100):
        assert world.rates.wait_ms("CLIENTS") == 0
        world.rates.take_back("CLIENTS")
    assert world.until_it_waits("CLIENTS")[0] == 10


def test_a_listener_that_is_not_there_is_named(caplog: pytest.LogCaptureFixture) -> None:
    World(clients=5)
    assert not caplog.records
    World(client=5)
    assert "listener.name.client.max.connection.creation.rate has no effect" in caplog.text
