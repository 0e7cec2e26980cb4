"""How many connections an address may open, by its own quota or the default, and what is forgotten (KIP-612)."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from broker.quotas import connection_rates
from broker.quotas.by_host import ByHost
from broker.quotas.connection_rates import ConnectionRates
from broker.settings.config import BrokerConfig
from protocol.zk.entity_names import sanitized


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.rates = ConnectionRates(BrokerConfig(quota_window_num=3), lambda: self.now)

    def set(self, address: str, rate: int | None) -> None:
        self.rates.changed({f"ips/{address}": {} if rate is None else {"connection_creation_rate": str(rate)}})

    def accepted(self, address: str, count: int) -> int:
        """How many of them count."""
        return sum(self.rates.throttle_ms(address) == 0 for _ in range(count))


def test_two_seconds_worth_at_once_and_then_the_rate() -> None:
    world = World()
    assert world.accepted("10.0.0.1", 100) == 100
    world.set("<default>", 5)
    assert world.accepted("10.0.0.1", 100) == 10
    assert world.rates.throttle_ms("10.0.0.1") == 200
    world.now = 2.5
    assert world.accepted("10.0.0.1", 100) == 2, "those that were refused do not count"
    assert world.accepted("10.0.0.2", 100) == 10


def test_its_own_quota_counts_before_the_default() -> None:
    world = World()
    world.set("<default>", 5)
    world.set("10.0.0.1", 1000)
    assert world.accepted("10.0.0.1", 100) == 100
    world.set("10.0.0.1", 0)
    assert world.rates.throttle_ms("10.0.0.1") == 1000, "as long as a sample, at most"
    world.set("10.0.0.1", None)
    assert world.accepted("10.0.0.2", 100) == 10
    world.set("<default>", None)
    assert world.accepted("10.0.0.3", 100) == 100


def test_a_new_session_forgets_quotas_that_are_gone() -> None:
    world = World()
    world.set("<default>", 5)
    world.set("10.0.0.1", 1)
    world.rates.all_are(["ips/10.0.0.2", "users/<default>"])
    assert world.accepted("10.0.0.1", 100) == 100


def test_what_cannot_be_read_changes_nothing() -> None:
    world = World()
    world.set("10.0.0.1", 1)
    world.rates.changed({"ips/10.0.0.1": {"connection_creation_rate": "many"}, "users/a": {"producer_byte_rate": "1"}})
    assert world.accepted("10.0.0.1", 100) == 2


async def test_the_name_of_a_host_counts_for_its_addresses() -> None:
    world = World()
    world.set("localhost", 1)
    await asyncio.gather(*world.rates._of.tasks.values())
    assert world.accepted("127.0.0.1", 100) == 2
    world.rates.all_are(["ips/localhost"])
    assert world.rates.throttle_ms("127.0.0.1") > 0
    world.set("localhost", None)
    assert world.rates.throttle_ms("127.0.0.1") == 0


async def test_a_quota_of_a_host_that_changes_before_its_address_is_known() -> None:
    world = World()
    for rate in (1, 2, None):
        world.set("localhost", rate)
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    assert world.accepted("127.0.0.1", 100) == 100
    world.set("localhost", 1)
    world.set("localhost", 3)
    await asyncio.gather(*world.rates._of.tasks.values())
    assert world.accepted("127.0.0.1", 100) == 6


@pytest.mark.parametrize("order", list(itertools.permutations(("localhost", "127.0.0.1", "host-b"))))
@pytest.mark.parametrize("is_told_of_the_rest", [False, True])
async def test_an_address_and_names_of_it_have_quotas(
    order: tuple[str, ...], is_told_of_the_rest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever comes or goes first: the quota of the address counts, else the least of those of its names."""
    rates = {"127.0.0.1": 4, "localhost": 3, "host-b": 2}
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", looked_up)
    world = World()
    there: list[str] = []

    def accepts(count: int) -> bool:
        world.now += 1000
        return world.accepted("127.0.0.1", 50) == count

    def counting() -> int:
        return rates["127.0.0.1"] if "127.0.0.1" in there else min(rates[name] for name in there)

    for name in order:
        world.set(name, rates[name])
        there.append(name)
        await asyncio.gather(*world.rates._of.tasks.values())
        assert accepts(2 * counting()), there
    while there:
        gone = there.pop(0)
        if is_told_of_the_rest:
            world.rates.all_are([f"ips/{name}" for name in there])
        else:
            world.set(gone, None)
        assert accepts(2 * counting() if there else 50), there


async def looked_up(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
    return [(0, 0, 0, "", ("127.0.0.1", 0))]


def test_an_address_may_be_written_in_any_form() -> None:
    world = World()
    world.set(sanitized("2001:DB8:0:0::1"), 1)
    world.rates.all_are([f"ips/{sanitized('2001:DB8:0:0::1')}"])
    assert world.accepted("2001:db8::1", 100) == 2
    world.set(sanitized("2001:DB8:0:0::1"), None)
    assert world.rates.throttle_ms("2001:db8::1") == 0


def test_the_addresses_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_rates, "METERS_MAX", 100)
    world = World()
    world.set("<default>", 5)
    for number in range(1000):
        world.accepted(f"10.0.{number // 256}.{number % 256}", 1)
    assert len(world.rates._used) <= 100


async def test_addresses_are_looked_for_one_host_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer holds up no other look-up of the broker."""
    asked: list[str] = []
    answered = asyncio.Event()

    async def looked_up(host: str, *_: object, **__: object) -> list[object]:
        asked.append(host)
        await answered.wait()
        return [(0, 0, 0, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", looked_up)
    turn = asyncio.Semaphore(1)
    both = ByHost("a quota", turn), ByHost("a limit", turn)
    for number in range(5):
        for one in both:
            one.set(f"host-{number}", 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert asked == ["host-0"]
    both[0].set("host-0", None)
    answered.set()
    await asyncio.gather(*(task for one in both for task in one.tasks.values()))
    assert len(asked) == 10
    assert both[1].get("10.0.0.1") == 1
