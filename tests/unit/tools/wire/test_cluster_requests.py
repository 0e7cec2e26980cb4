"""Requests go to the right broker, in a version that it serves; a broker that hangs or is dead delays only what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiKey, VersionRange
from tests.support.fake_brokers import FakeBroker, metadata, topic
from tools.wire.client import Client
from tools.wire.cluster_requests import ANY_BROKER, CONTROLLER, VERSIONS, ClusterRequests, Question, Unsupported
from tools.wire.cluster_view import Unreachable

LISTED = {"error_code": 0, "groups": []}
FOUND = {"error_code": 0, "error_message": None, "node_id": 1}
GROUPS = Question(1, ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []})

Work = Callable[[ClusterRequests], Awaitable[Any]]


def run(work: Work, *brokers: FakeBroker, controller: int = 2, **limits: float) -> Any:
    """What `work` returns for a cluster of these brokers, with ids from 1 on."""

    async def all_of_it() -> Any:
        addresses = {number: await broker.start() for number, broker in enumerate(brokers, 1)}
        for broker in brokers:
            broker._answers = {ApiKey.METADATA: metadata(addresses, controller, topic("t", 1)), **broker._answers}
        asked = {"connect_timeout_s": 2.0, "answer_timeout_s": 0.2, **limits}
        try:
            async with ClusterRequests(Client("test"), list(addresses.values()), **asked) as requests:
                return await work(requests)
        finally:
            for broker in brokers:
                broker.close()

    return asyncio.run(all_of_it())


def test_a_question_goes_to_its_broker_in_the_newest_version_that_both_know() -> None:
    old: Mapping[ApiKey, VersionRange] = {**VERSIONS, ApiKey.LIST_GROUPS: VersionRange(0, 3)}
    new = {**VERSIONS, ApiKey.LIST_GROUPS: VersionRange(0, 99)}
    first, second = FakeBroker({ApiKey.LIST_GROUPS: LISTED}, old), FakeBroker({ApiKey.LIST_GROUPS: LISTED}, new)

    async def ask(requests: ClusterRequests) -> None:
        await requests.ask(GROUPS)
        await requests.ask(GROUPS._replace(to=CONTROLLER))

    run(ask, first, second)
    assert first.asked[-1] == (ApiKey.LIST_GROUPS, 3)
    assert second.asked[-1] == (ApiKey.LIST_GROUPS, 5)


@pytest.mark.parametrize(
    "served", [{}, {ApiKey.LIST_GROUPS: VersionRange(0, 3)}, {ApiKey.LIST_GROUPS: VersionRange(6, 9)}]
)
def test_what_a_broker_does_not_serve_is_not_sent(served: Mapping[ApiKey, VersionRange]) -> None:
    broker = FakeBroker({}, {ApiKey.METADATA: VERSIONS[ApiKey.METADATA], **served})
    with pytest.raises(Unsupported):
        run(lambda requests: requests.ask(GROUPS._replace(version_min=4)), broker)
    assert [key for key, _ in broker.asked] == [ApiKey.METADATA]


def test_a_group_is_asked_for_at_its_coordinator() -> None:
    coordinator = FakeBroker({ApiKey.LIST_GROUPS: LISTED})

    async def ask(requests: ClusterRequests) -> None:
        await requests.ask(GROUPS._replace(to="g"))

    async def start_and_run() -> None:
        host, port = await coordinator.start()
        asked = FakeBroker({ApiKey.FIND_COORDINATOR: {**FOUND, "host": host, "port": port}})
        address = await asked.start()
        asked._answers = {ApiKey.METADATA: metadata({}, -1), **asked._answers}
        async with ClusterRequests(Client("test"), [address], 2.0, 2.0) as requests:
            await ask(requests)
        asked.close()
        coordinator.close()

    asyncio.run(start_and_run())
    assert coordinator.asked == [(ApiKey.LIST_GROUPS, 5)]


@pytest.mark.parametrize(
    ("to", "answer", "code"),
    [
        (1, {"error_code": 14, "groups": []}, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (1, None, ErrorCode.REQUEST_TIMED_OUT),
        (9, LISTED, ErrorCode.BROKER_NOT_AVAILABLE),
        (CONTROLLER, LISTED, ErrorCode.NOT_CONTROLLER),
    ],
)
def test_failures_are_error_codes(to: int, answer: Mapping[str, Any] | None, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as failed:
        run(
            lambda requests: requests.ask(GROUPS._replace(to=to)),
            FakeBroker({ApiKey.LIST_GROUPS: answer}),
            controller=-1,
        )
    assert failed.value.code is code


def test_a_broker_that_dies_is_told_from_one_that_was_dead() -> None:
    dying, dead = FakeBroker({ApiKey.LIST_GROUPS: None}), FakeBroker({})

    async def ask(requests: ClusterRequests) -> list[ErrorCode]:
        dead.close()
        asyncio.get_running_loop().call_later(0.1, dying.close)
        found = await asyncio.gather(*(requests.ask(GROUPS._replace(to=to)) for to in (1, 2)), return_exceptions=True)
        return [problem.code for problem in found if isinstance(problem, KafkaError)]

    assert run(ask, dying, dead, answer_timeout_s=5.0) == [ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE]


def test_a_broker_that_hangs_is_passed_over() -> None:
    hanging, other = FakeBroker({}, is_silent=True), FakeBroker({ApiKey.LIST_GROUPS: LISTED})

    async def ask(requests: ClusterRequests) -> Any:
        await requests.ask(GROUPS._replace(to=ANY_BROKER))
        return requests.bootstrap[0] == requests._addresses[2]

    assert run(ask, hanging, other)
    with pytest.raises(Unreachable):
        run(ask, FakeBroker({}, is_silent=True), connect_timeout_s=0.2)
