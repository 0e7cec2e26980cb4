"""When the loop polls for the next request instead of going to sleep."""

from __future__ import annotations

from broker.network.brief_polling import POLL_S, POLLS_MAX, ROW_MAX, ROW_MIN, SHORT_TURN_S, SOON_S, BriefPolling
from broker.network.request_channel import RequestChannel
from tests.support.turns import Turns

US = 1e-6


class Client:
    """It sends a request `after` seconds after the end of each turn; the loop polls every 10 us if it is told to."""

    def __init__(self) -> None:
        self.polling = BriefPolling()
        self.now = 0.0
        self.turn_s = 10 * US
        self.polled_s = 0.0

    def send(self, after: float, requests: int = 1) -> None:
        for _ in range(requests):
            self.now += self.turn_s
            self.polling.turn_ended(self.now - self.turn_s, self.now)
            came_at = self.now + after
            goes_on = self.polling.is_on
            while goes_on and self.now < came_at:
                self.now += 10 * US
                self.polled_s += 10 * US
                goes_on = self.polling.goes_on(self.now)
            self.now = max(self.now, came_at)
            self.polling.arrived(self.now)


def test_the_loop_polls_while_requests_come_soon_one_after_the_other() -> None:
    client = Client()
    client.send(30 * US, ROW_MIN - 1)
    assert not client.polling.is_on
    client.send(30 * US)
    assert client.polling.is_on
    client.send(30 * US, 1000)
    assert client.polling.is_on
    client.send(POLL_S + 10 * US)
    assert not client.polling.is_on, "it polled in vain"


def test_polling_in_vain_takes_little_of_the_time() -> None:
    """Each request comes just when the loop has given up."""
    client = Client()
    client.send(POLL_S + 10 * US, 10_000)
    assert 0 < client.polled_s < client.now / ROW_MAX


def test_after_a_bad_time_polling_begins_as_early_as_before() -> None:
    client = Client()
    client.send(POLL_S + 10 * US, 1000)
    client.send(SOON_S + 1 * US)
    client.send(30 * US, ROW_MAX - 1)
    assert not client.polling.is_on
    client.send(30 * US, 1 + ROW_MAX + ROW_MAX // 2 + ROW_MAX // 4)
    client.send(SOON_S)
    client.send(30 * US, ROW_MIN)
    assert not client.polling.is_on, "the row is twice as long after a poll in vain"
    client.send(30 * US, ROW_MIN)
    assert client.polling.is_on


def test_the_loop_does_not_poll_after_a_long_turn() -> None:
    client = Client()
    client.send(30 * US, ROW_MIN)
    assert client.polling.is_on
    client.turn_s = SHORT_TURN_S + 1 * US
    client.send(30 * US, 1000)
    assert client.polled_s == 0


def test_polls_are_limited_if_the_clock_stands_still() -> None:
    client = Client()
    client.send(0.0, ROW_MIN)
    assert client.polling.is_on
    client.polling.turn_ended(client.now, client.now)
    polls = 1
    while client.polling.goes_on(client.now):
        polls += 1
    assert polls == POLLS_MAX


def test_a_channel_stops_polling_when_no_request_comes() -> None:
    turns = Turns()
    channel = RequestChannel(turns, lambda request: None, max_requests=1, max_large_bytes=-1)
    channel._polling.is_on = True
    channel._drain()
    turns.run()
    assert not channel._polling.is_on
