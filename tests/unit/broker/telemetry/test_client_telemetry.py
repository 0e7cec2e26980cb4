"""Subscriptions to metrics of clients, and when a client may ask and push (KIP-714). A Kafka 4.1.1 answers the same."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from broker.telemetry import client_telemetry
from broker.telemetry.client_telemetry import Client, ClientTelemetry, Instance
from protocol.errors import ErrorCode, KafkaError
from protocol.otlp import Number

ME = uuid.UUID(int=5)
JAVA = Client("app-1", "apache-kafka-java", "4.1.1", "10.0.0.7", "4711")
ZSTD = 4


class World:
    """A telemetry with a clock; `fast` is a subscription with an interval of a second."""

    def __init__(self) -> None:
        self.now = 100.0
        self.telemetry = ClientTelemetry(1000, lambda: self.now)
        self.subscribe("fast", **{"interval.ms": "1000", "metrics": "a.,b."})

    def subscribe(self, name: str, **configs: str) -> None:
        self.telemetry.changed({f"client-metrics/{name}": configs})

    def ask(self, client: Client = JAVA, instance: uuid.UUID | None = ME) -> Any:
        return self.telemetry.subscribe(instance, client)

    def push(self, subscription: int | None = None, **other: Any) -> Instance:
        given = {"compression": ZSTD, "size": 10, "is_terminating": False, **other}
        if subscription is None:
            subscription = self.telemetry.instances[ME].subscribed.subscription_id
        return self.telemetry.check_push(ME, JAVA, subscription, **given)

    def refusal(self, action: str, *arguments: Any, **other: Any) -> ErrorCode:
        """The error of `ask` or `push`; NONE if there is none."""
        try:
            getattr(self, action)(*arguments, **other)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("subscriptions", "metrics", "interval_ms"),
    [
        ({}, [], 300_000),
        ({"x": {"metrics": "m."}}, ["m."], 300_000),
        ({"x": {"metrics": "m.,n."}, "y": {"metrics": "n.,k.", "interval.ms": "5000"}}, ["k.", "m.", "n."], 5000),
        ({"x": {"metrics": "m."}, "y": {"metrics": "*"}}, ["*"], 300_000),
        ({"x": {"metrics": "m.", "match": "client_id=app-.*,client_software_version=4\\.1.*"}}, ["m."], 300_000),
        ({"x": {"metrics": "m.", "match": "client_id=app"}}, [], 300_000),
        ({"x": {"metrics": "m.", "match": "client_id=app-1,client_source_port=9"}}, [], 300_000),
        ({"x": {"metrics": "m.", "interval.ms": "100", "match": "client_software_name=librdkafka"}}, [], 300_000),
        ({"x": {"metrics": "m.", "match": f"client_instance_id={'A' * 21}Q|{'A' * 20}BQ"}}, ["m."], 300_000),
        ({"x": {"interval.ms": "200"}}, [], 200),
    ],
)
def test_what_a_client_shall_push(
    world: World, subscriptions: dict[str, dict[str, str]], metrics: list[str], interval_ms: int
) -> None:
    world.subscribe("fast")  # it is gone
    for name, configs in subscriptions.items():
        world.subscribe(name, **configs)
    found = world.ask()
    assert (found.metrics, found.interval_ms) == (metrics, interval_ms)
    assert -(2**31) <= found.subscription_id < 2**31


def test_a_client_without_an_id_gets_one(world: World) -> None:
    first, second = world.ask(instance=None), world.ask(instance=uuid.UUID(int=0))
    assert first.instance_id != second.instance_id
    assert world.ask(instance=uuid.UUID(int=9)).subscription_id != first.subscription_id


def test_the_pace_of_a_client(world: World) -> None:
    throttled, fine = ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.NONE
    assert [world.refusal("ask"), world.refusal("ask")] == [fine, throttled]
    assert [world.refusal("push"), world.refusal("push")] == [fine, throttled], "the first push may come at once"
    world.now += 0.9
    assert [world.refusal("ask"), world.refusal("push")] == [throttled, throttled]
    world.now += 0.2
    assert [world.refusal("push"), world.refusal("ask")] == [fine, throttled]
    assert world.refusal("push", is_terminating=True) is fine, "the last one may come early"
    world.now += 2
    assert world.refusal("push") is ErrorCode.INVALID_REQUEST, "it was the last one"
    assert world.telemetry.throttled == 5


@pytest.mark.parametrize(
    ("push", "error"),
    [
        ({"subscription": 1}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({"compression": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"compression": -1}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"compression": 0}, ErrorCode.NONE),
        ({"size": 1001}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"size": 1000}, ErrorCode.NONE),
    ],
)
def test_pushes_that_are_refused(world: World, push: dict[str, int], error: ErrorCode) -> None:
    """After two of the errors, a client asks again at once."""
    world.ask()
    assert world.refusal("push", **push) is error
    asks_again = error in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    assert world.refusal("ask") is (ErrorCode.NONE if asks_again else ErrorCode.THROTTLING_QUOTA_EXCEEDED)


@pytest.mark.parametrize("instance", [None, uuid.UUID(int=0), uuid.UUID(int=1)])
def test_a_push_needs_an_id(world: World, instance: uuid.UUID | None) -> None:
    with pytest.raises(KafkaError) as refused:
        world.telemetry.check_push(instance, JAVA, 1, ZSTD, 1, is_terminating=False)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_change_of_the_subscriptions_counts_at_once(world: World) -> None:
    before = world.ask()
    world.push()
    world.subscribe("fast", **{"interval.ms": "1000", "metrics": "c."})
    assert world.refusal("push", before.subscription_id) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert world.ask().metrics == ["c."]
    world.telemetry.all_are(())
    assert (world.telemetry.names(), world.ask().metrics) == ([], [])


def test_settings_that_cannot_be_used_leave_the_earlier_ones(world: World) -> None:
    world.subscribe("fast", **{"interval.ms": "7", "metrics": "c.", "match": "client_id=("})
    assert world.telemetry.configs_of("fast") == {"interval.ms": "1000", "metrics": "c."}
    world.subscribe("a%2Fb", metrics="x")
    assert world.telemetry.names() == ["a/b", "fast"]


def number(metric: str, value: float, *, is_delta: bool = False, **attributes: str) -> Number:
    return Number(metric, tuple(sorted(attributes.items())), value, is_delta)


def test_what_was_pushed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums come as differences. There are limits of what is kept, and the end of the connection ends it."""
    world.ask()
    instance = world.push()
    for _ in range(2):
        numbers = [number("sum", 2, is_delta=True), number("gauge", 7, topic="t"), number("gauge", 8, topic="u")]
        world.telemetry.pushed(instance, 30, numbers)
    assert instance.series == {
        ("sum", ()): 4,
        ("gauge", (("topic", "t"),)): 7,
        ("gauge", (("topic", "u"),)): 8,
    }
    assert (world.telemetry.pushes, world.telemetry.pushed_bytes) == (2, 60)
    monkeypatch.setattr(client_telemetry, "SERIES_MAX", 4)
    world.telemetry.pushed(instance, 30, [number(f"m{n}", n) for n in range(5)])
    assert len(instance.series) == 4
    assert world.telemetry.bind(ME, "a connection")
    assert not world.telemetry.bind(ME, "a connection")
    world.telemetry.gone("a connection")
    assert not world.telemetry.instances
    world.ask()
    world.telemetry.pushed(world.push(), 30, [number(f"m{n}", n) for n in range(5)])
    assert len(world.telemetry.instances[ME].series) == 4


def test_silent_clients_and_too_many_are_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ask()
    world.now += 59
    assert world.refusal("push", is_terminating=True) is ErrorCode.NONE
    world.now += 61
    assert world.refusal("ask") is ErrorCode.NONE, "it is a new one"
    monkeypatch.setattr(client_telemetry, "INSTANCES_MAX", 3)
    for other in range(10, 20):
        world.ask(instance=uuid.UUID(int=other))
    assert len(world.telemetry.instances) <= 4
