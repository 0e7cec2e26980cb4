"""Quotas have the same throttle times and answers as in a real Kafka (CLI-6): the same requests to one broker of each kind."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from broker.quotas.rates import SampledRate, Window, throttle_time
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from tests.conftest import CALM, ClusterFactory
from tests.support.quotas import CLIENT_ID, IP, USER, Side, Throttled
from tests.support.real_kafka import running_kafka, skip_without_kafka
from tools.admin.bootstrap import addresses_of

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.timeout(600)]

SETTINGS = {**CALM, "quota.window.num": "3", "controller.quota.window.num": "3"}
TOLERANCE = 0.2
SMALL_MS = 60
"""Throttle times may differ by so much: a busy machine takes longer from one request to the next."""
WINDOW = Window(3, 1000)
EXACT, OF_DEFAULT, ANY = 0, 1, 2
OTHER_ADDRESS = "127.0.0.2"
"""Of this machine; the tests themselves come from another one."""


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory, new_module_cluster: ClusterFactory) -> Iterator[list[Side]]:
    """Ours, then Kafka's."""
    skip_without_kafka()
    cluster = new_module_cluster(brokers=1, overrides=SETTINGS)
    with running_kafka(tmp_path_factory.mktemp("kafka"), brokers=1, overrides=SETTINGS) as kafka:
        yield [Side(addresses_of(text)[0][1]) for text in (cluster.bootstrap_servers, kafka.bootstrap_servers)]


def on_both(sides: list[Side], history: Callable[[Side], Any]) -> tuple[Any, Any]:
    """What the history finds at each, at the same time."""
    with ThreadPoolExecutor(2) as pool:
        ours, kafkas = pool.map(history, sides)
    return ours, kafkas


def assert_as_computed(found: Throttled, quota: int, *, is_taken_back: bool = False) -> None:
    """The throttle times are those of Kafka's rate at the times of these answers, however busy the machine is. `is_taken_back`: what is
    throttled does not count."""
    rate = SampledRate(WINDOW)
    for throttle_ms, at, size in zip(found.times, found.at, found.sizes, strict=True):
        rate.record(size, at)
        expected = throttle_time(rate.wait_ms(quota, at))
        assert abs(throttle_ms - expected) <= max(TOLERANCE * max(throttle_ms, expected), SMALL_MS), (found, expected)
        if is_taken_back and throttle_ms:
            rate.record(-size, at)
    for throttle_ms, took in zip(found.times, found.took[1:], strict=False):
        assert took >= throttle_ms / 1000 - 0.05, "the connection is muted for so long"


def test_producers_wait_alike(sides: list[Side]) -> None:
    def history(side: Side) -> Throttled:
        side.set({CLIENT_ID: "producer"}, producer_byte_rate=100_000)
        return side.produce(side.topic(), "producer", [50_000] * 4 + [30_000, 60_000, 100, 100])

    for found in on_both(sides, history):
        assert any(found.times)
        assert_as_computed(found, 100_000)


def test_consumers_wait_alike_and_get_nothing_meanwhile(sides: list[Side]) -> None:
    def history(side: Side) -> tuple[Throttled, list[int]]:
        topic = side.topic()
        side.produce(topic, "filler", [50_000] * 4)
        side.set({CLIENT_ID: "consumer"}, consumer_byte_rate=60_000)
        # The fifth comes at the end of a sample of the rate. A millisecond decides in which sample it counts, and how long a sixth waits.
        return side.fetch(topic, "consumer", 5, 100_000)

    (ours, own_sizes), (kafkas, kafkas_sizes) = on_both(sides, history)
    for found in (ours, kafkas):
        assert any(found.times)
        assert_as_computed(found, 60_000, is_taken_back=True)
    assert max(own_sizes) == max(kafkas_sizes)
    for found, sizes in ((ours, own_sizes), (kafkas, kafkas_sizes)):
        assert all((size > 0) is (throttle_ms == 0) for size, throttle_ms in zip(sizes, found.times, strict=True))


def test_the_same_level_counts(sides: list[Side]) -> None:
    """From the least to the most specific: each quota is larger than the one that counts no longer. Each client is a new one."""

    def history(side: Side) -> tuple[list[int], int]:
        topic = side.topic()
        found, levels = [], []
        try:
            for number, (user, client) in enumerate(LEVELS):
                names = {USER: user, CLIENT_ID: client if client != "own" else f"level-{number}"}
                levels.append({kind: name for kind, name in names.items() if name != "no"})
                side.set(levels[-1], producer_byte_rate=2000 * 2**number)
                # Half as much again as a window of two seconds allows: a second, by this quota and by no other.
                found += side.produce(topic, f"level-{number}", [2000 * 2**number * 3]).times
            found += side.produce(topic, "other", [2000 * 2**6 * 3]).times
            (without_id,) = side.produce(topic, "", [2000 * 2**8]).times
        finally:
            for entity in levels:
                side.alter(entity, producer_byte_rate=None)
        return found, without_id

    for times, without_id in on_both(sides, history):
        # The window is between two and three seconds long, so three seconds' worth waits for up to one: of a user also for what the
        # level before it has used. By a smaller quota it would be three seconds or more, by a larger one or none nothing.
        assert all(200 <= found <= 1700 for found in times), times
        assert without_id > 1000, "by the quota of its user"


LEVELS = [
    ("no", None),
    ("no", "own"),
    (None, "no"),
    (None, None),
    (None, "own"),
    ("ANONYMOUS", "no"),
    ("ANONYMOUS", None),
    ("ANONYMOUS", "own"),
]
"""(user, client id) of quotas; None: every other one."""


def test_a_quota_of_nothing(sides: list[Side]) -> None:
    def history(side: Side) -> list[int]:
        topic = side.topic()
        side.set({CLIENT_ID: "nothing"}, producer_byte_rate=0, consumer_byte_rate=0)
        produced = side.produce(topic, "nothing", [1000] * 2).times
        throttled, sizes = side.fetch(topic, "nothing", 2, 100_000)
        return [*produced, *throttled.times, *(size > 0 for size in sizes)]

    ours, kafkas = on_both(sides, history)
    assert ours == kafkas


def test_changes_of_partitions_wait_or_are_refused_alike(sides: list[Side]) -> None:
    """KIP-599: strict for new versions, which are refused; old ones wait afterwards. Three seconds' worth is there at first."""

    def history(side: Side) -> tuple[list[tuple[int, str | None]], list[int]]:
        old, new = (
            {"CREATE_TOPICS": 5, "DELETE_TOPICS": 4, "CREATE_PARTITIONS": 2},
            {"CREATE_TOPICS": 6, "DELETE_TOPICS": 5, "CREATE_PARTITIONS": 3},
        )
        errors, times = [], []
        for name, versions in (("strict", new), ("lenient", old)):
            side.set({CLIENT_ID: name}, controller_mutation_rate=1)
            with side.wire(name) as wire:
                for api, body in (
                    ("CREATE_TOPICS", created(f"{name}-1", 6)),
                    ("CREATE_PARTITIONS", grown(f"{name}-1", 8)),
                    ("DELETE_TOPICS", {"topic_names": [f"{name}-1"], "timeout": 30_000}),
                    ("CREATE_TOPICS", created(f"{name}-2", 1)),
                ):
                    answer = wire.call(ApiKey[api], versions[api], body)
                    times.append(messages.milliseconds(answer.throttle_time))
                    (row,) = next(
                        rows for rows in (getattr(answer, n, None) for n in ("topics", "results", "responses")) if rows
                    )
                    errors.append((int(row.error_code), getattr(row, "error_message", None)))
        return errors, times

    (own_errors, ours), (kafkas_errors, kafkas) = on_both(sides, history)
    assert [code for code, _ in own_errors] == [code for code, _ in kafkas_errors]
    refused = (int(ErrorCode.THROTTLING_QUOTA_EXCEEDED), None)
    assert refused in own_errors
    assert [one for one in own_errors if one[0] == refused[0]] == [one for one in kafkas_errors if one[0] == refused[0]]
    for own, other in zip(ours, kafkas, strict=True):
        # What an answer takes until the partitions have leaders is not throttled; a machine that is busy takes long.
        assert abs(own - other) <= max(TOLERANCE * max(own, other), 1000), (ours, kafkas)


def created(topic: str, partitions: int) -> dict[str, Any]:
    row = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": ()}
    return {"topics": [row], "timeout": 30_000, "validate_only": False}


def grown(topic: str, count: int) -> dict[str, Any]:
    return {"topics": [{"name": topic, "count": count, "assignments": None}], "timeout": 30_000, "validate_only": False}


NO_SESSION = {
    "replica_id": -1,
    "max_wait": 0,
    "min_bytes": 1,
    "max_bytes": 1000,
    "isolation_level": 0,
    "session_id": 4711,
    "session_epoch": 5,
    "topics": (),
    "forgotten_topics_data": (),
    "rack_id": "",
}
"""A fetch in a session that does not exist."""


def test_the_time_of_requests_costs_alike(sides: list[Side]) -> None:
    """By a quota of no time at all, each answer has the longest throttle time, wherever it is in the answer."""

    def history(side: Side) -> list[int]:
        topic = side.topic()
        side.set({CLIENT_ID: "timed"}, request_percentage=0)
        with side.wire("timed") as wire:
            answers = [
                wire.call(ApiKey.METADATA, 9, {"topics": None}),
                wire.call(ApiKey.API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"}),
                wire.call(ApiKey.API_VERSIONS, 2, {}),
                wire.call(ApiKey.LIST_GROUPS, 2, {}),
                wire.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": (), "strict": True}),
            ]
            of_no_session = wire.call(ApiKey.FETCH, 11, NO_SESSION)
        produced = side.produce(topic, "timed", [10])
        fetched, sizes = side.fetch(topic, "timed", 2, 1000)
        with side.wire("untimed") as wire:
            refused = wire.call(ApiKey.FETCH, 11, NO_SESSION)
        side.set({CLIENT_ID: "timed"}, request_percentage=None)
        found = [messages.milliseconds(answer.throttle_time) for answer in (*answers, of_no_session, refused)]
        errors = [int(answer.error_code) for answer in (of_no_session, refused)]
        return [*found, *produced.times, *fetched.times, *sizes, *errors]

    ours, kafkas = on_both(sides, history)
    assert ours == kafkas
    assert ours[0] == 1000
    assert ours[-1] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_connections_are_closed_alike(sides: list[Side]) -> None:
    """KIP-612: two seconds' worth at once, of one address; then they are closed, after a wait, and do not count."""
    rate, limit = 5, 100
    payload = messages.encode_request(ApiKey.API_VERSIONS, 2, 1, "many", {})
    frame = len(payload).to_bytes(4, "big") + payload

    def is_served(side: Side) -> bool:
        with (
            socket.create_connection(("127.0.0.1", side.port), 10, source_address=(OTHER_ADDRESS, 0)) as one,
            suppress(ConnectionResetError),
        ):
            one.sendall(frame)
            return bool(one.recv(1))
        return False

    def history(side: Side) -> tuple[int, float, list[float], bool]:
        """How many were served before one was closed, the seconds that this took, how long three waited for it, and what came after."""
        side.set({IP: OTHER_ADDRESS}, connection_creation_rate=rate)
        served, waits, first, took = 0, [], time.monotonic(), 0.0
        for _ in range(limit):
            began = time.monotonic()
            if is_served(side):
                served += not waits
                continue
            took = took or time.monotonic() - first
            waits.append(time.monotonic() - began)
            if len(waits) == 3:
                break
        time.sleep(3)
        is_served_again = is_served(side)
        side.set({IP: OTHER_ADDRESS}, connection_creation_rate=None)
        return served, took, waits, is_served_again

    for served, took, waits, is_served_again in on_both(sides, history):
        assert len(waits) == 3
        assert rate * 2 - 1 <= served <= rate * (2 + took) + 2, (
            "two seconds' worth, and what the time allows that it took"
        )
        assert all(0.01 < wait < 2 for wait in waits), waits
        assert is_served_again


ALTERATIONS: list[tuple[dict[str, str | None], dict[str, float | None]]] = [
    ({USER: "a b"}, {"producer_byte_rate": 1024, "request_percentage": 12.5}),
    ({USER: "a b", CLIENT_ID: None}, {"consumer_byte_rate": 7}),
    ({USER: None}, {"controller_mutation_rate": 0.25}),
    ({CLIENT_ID: "c*~+d"}, {"producer_byte_rate": 1e15}),
    ({CLIENT_ID: None}, {"producer_byte_rate": 5}),
    ({IP: "10.0.0.7"}, {"connection_creation_rate": 12}),
    ({IP: None}, {"connection_creation_rate": 100}),
    ({IP: "no-such-host.invalid"}, {"connection_creation_rate": 1}),
    ({IP: "::1"}, {"connection_creation_rate": 1}),
    ({}, {"producer_byte_rate": 1}),
    ({"group": "g"}, {"producer_byte_rate": 1}),
    ({USER: ""}, {"producer_byte_rate": 1}),
    ({USER: "u", IP: "10.0.0.7"}, {"producer_byte_rate": 1}),
    ({USER: "u"}, {"producer_byte_rate": 1.5}),
    ({USER: "u"}, {"producer_byte_rate": -1}),
    ({USER: "u"}, {"request_percentage": -1}),
    ({USER: "u"}, {"request_percentage": 12345678.9}),
    ({USER: "u"}, {"connection_creation_rate": 1}),
    ({IP: "10.0.0.8"}, {"producer_byte_rate": 1}),
    ({IP: "10.0.0.8"}, {"connection_creation_rate": 3e9}),
    ({USER: "u"}, {"unknown": 1}),
    ({USER: "nobody"}, {"producer_byte_rate": None}),
    ({USER: "a b"}, {"producer_byte_rate": None}),
]
FILTERS: list[tuple[list[tuple[str, int, str | None]], bool]] = [
    ([], False),
    ([], True),
    ([(USER, ANY, None)], False),
    ([(USER, ANY, None)], True),
    ([(USER, EXACT, "a b")], False),
    ([(USER, EXACT, "a b")], True),
    ([(USER, OF_DEFAULT, None)], False),
    ([(CLIENT_ID, EXACT, "c*~+d")], False),
    ([(CLIENT_ID, OF_DEFAULT, None)], False),
    ([(USER, EXACT, "a b"), (CLIENT_ID, OF_DEFAULT, None)], True),
    ([(USER, ANY, None), (CLIENT_ID, ANY, None)], False),
    ([(IP, ANY, None)], False),
    ([(IP, EXACT, "10.0.0.7")], True),
    ([(IP, OF_DEFAULT, None)], True),
    ([(USER, ANY, None), (IP, ANY, None)], False),
    ([(USER, ANY, None), (USER, ANY, None)], False),
    ([("", ANY, None)], False),
    ([("group", ANY, None)], False),
    ([(USER, 3, None)], False),
]


def test_changes_and_descriptions_are_answered_alike(sides: list[Side]) -> None:
    def history(side: Side) -> list[object]:
        answers: list[object] = [side.alter(entity, validate_only=True, **quotas) for entity, quotas in ALTERATIONS]
        answers += [side.alter(entity, **quotas) for entity, quotas in ALTERATIONS]
        answers += [side.describe(components, strict=strict) for components, strict in FILTERS]
        for entity, quotas in ALTERATIONS:
            side.alter(entity, **dict.fromkeys(quotas))
        return answers

    ours, kafkas = on_both(sides, history)
    asked: list[object] = [("validate", *one) for one in ALTERATIONS] + [*ALTERATIONS, *FILTERS]
    differing = [
        (question, own, other) for question, own, other in zip(asked, ours, kafkas, strict=True) if own != other
    ]
    assert differing == []
