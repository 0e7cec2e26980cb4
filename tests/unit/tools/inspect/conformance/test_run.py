"""One comparison: when a broker counts as silent, and what runs side by side."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.kafka.api_keys import SUPPORTED, ApiKey
from tools.failures import AdminError
from tools.inspect.conformance.matrix import cases_of
from tools.inspect.conformance.run import LINES, _on_lines, _until_silent
from tools.inspect.conformance.scene import Scene

SOON_S = 0.001


class Pinged:
    """Stands for a cluster. `ready` is set by the first ping."""

    home_address = ("host", 1)

    def __init__(self) -> None:
        self.pings = 0
        self.ready = asyncio.Event()

    async def ping(self, _: Any) -> None:
        self.pings += 1
        self.ready.set()


async def answered() -> str:
    return "answer"


@pytest.mark.parametrize("is_slow", [True, False], ids=["slow", "silent"])
async def test_a_broker_that_answers_others_but_not_the_request_is_silent(is_slow: bool) -> None:
    clusters = Pinged(), Pinged()
    sides: Any = tuple(SimpleNamespace(cluster=cluster) for cluster in clusters)

    async def late() -> str:
        await (clusters[1].ready if is_slow else asyncio.Event()).wait()
        return "late"

    sent: Any = [asyncio.create_task(answered()), asyncio.create_task(late())]
    await _until_silent(sides, sent, SOON_S)
    assert sent[0].done()
    assert clusters[0].pings == 0
    assert clusters[1].pings == (1 if is_slow else 2)
    assert sent[1].done() is is_slow
    sent[1].cancel()


async def test_a_failure_ends_the_other_lines() -> None:
    ended: list[str] = []

    async def do(line: str, item: int) -> None:
        if item == LINES - 1:
            raise AdminError("broken")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(line)

    with pytest.raises(AdminError, match="broken"):
        await _on_lines(range(100), do)
    assert len(ended) == LINES - 1


def test_apis_that_change_something_share_no_names() -> None:
    """They run side by side: a group or a topic that one has made would be another one's unknown."""
    scene = Scene("conform-0", 1)
    names: dict[ApiKey, set[str]] = {}
    for api_key in (ApiKey.JOIN_GROUP, ApiKey.DELETE_GROUPS):
        cases = list(cases_of(api_key, SUPPORTED[api_key], 1, scene))
        names[api_key] = {case.scene(scene).unknown for case in cases}
        assert len(names[api_key]) == len({case.version for case in cases})
        assert all(
            case.scene(scene).unknown.encode() in case.data(case.scene(scene))
            for case in cases
            if "= unknown" in case.name
        )
    assert names[ApiKey.JOIN_GROUP].isdisjoint(names[ApiKey.DELETE_GROUPS])
