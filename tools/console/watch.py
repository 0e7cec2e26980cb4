"""Watches one cluster and keeps the feed up to date. Several loops, each for one kind of request.

A broker that comes or goes, and every event of a broker's log, makes the partitions be read at once. Without news they are read every
second. What takes long is read less often, so that the console uses at most a tenth of a processor for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from protocol.types import Address
from tools.cluster.processes import ClusterError
from tools.console import reading
from tools.console.broker_connections import Links, NoAnswer
from tools.console.feed import LINES_MAX, Feed
from tools.console.metrics import Metrics
from tools.console.state import (
    BrokerState,
    PartitionRow,
    Rates,
    best_to_ask,
    brokers_section,
    controller_of,
    counts,
    group_lags,
)
from tools.faults.cluster import Cluster, State
from tools.faults.record import FaultRecord
from tools.timeline.following import Following
from tools.timeline.history import clocks_of, history_of
from tools.timeline.merging import ClockOffset, Event
from tools.timeline.sources import Sources
from tools.timeline.story import Line, Story
from tools.wire.security import Security

EVERY_S = 1.0
PROCESSES_EVERY_S = 0.5
EVENTS_EVERY_S = 0.15
EVENTS_OF_CONTAINERS_EVERY_S = 2.0
METRICS_EVERY_S = 2.0
REST, LONG_S = 10.0, 0.1
"""A reading that takes longer than this is followed by a pause of this many times its length."""
CALM_S = 0.05
"""Changes that come this close together are read once."""
NOBODY_ANSWERS = "no broker answers"


class Turn(NamedTuple):
    """One loop: what it does again and again. `is_early_for_news`: also at once when there is news."""

    read: Callable[[], Awaitable[None]]
    every_s: float
    is_early_for_news: bool = False


class Watch:
    """`target`: the processes or containers; None for a cluster of which only the addresses are known."""

    def __init__(
        self,
        feed: Feed,
        addresses: Mapping[int, Address],
        security: Security,
        target: Cluster | None,
        sources: Sources | None,
        metrics: Metrics | None,
    ) -> None:
        self.feed = feed
        self._target = target
        self._sources = sources
        self._metrics = metrics
        self._links = Links(addresses, security, self._on_brokers)
        self._partitions: dict[str, PartitionRow] = {}
        self._offsets: dict[str, int] = {}
        self._groups: dict[str, reading.GroupRow] = {}
        self._moves: dict[str, dict[str, list[int]]] = {}
        self._epoch: int | None = None
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._story = Story()
        self._following: Following | None = None
        self._rates = Rates()
        self._record = FaultRecord(target.record_file) if target is not None else None

    def start(self) -> None:
        self._links.start()
        self._publish()
        turns = [
            Turn(self._read_partitions, EVERY_S, is_early_for_news=True),
            Turn(self._read_offsets, EVERY_S),
            Turn(self._read_groups, EVERY_S),
            Turn(self._read_moves, EVERY_S),
        ]
        if self._target is not None:
            turns.append(Turn(self._look_at_processes, PROCESSES_EVERY_S))
        if self._sources is not None:
            turns.append(
                Turn(
                    self._follow_events,
                    EVENTS_EVERY_S if self._sources.have_one_clock else EVENTS_OF_CONTAINERS_EVERY_S,
                )
            )
        if self._metrics is not None:
            turns.append(Turn(self._metrics.read, METRICS_EVERY_S))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._for_ever(turn)) for turn in turns]

    async def failed(self) -> None:
        """Returns never, unless a loop has a bug: then its exception is raised."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._links.close()

    def say(self, who: str, text: str, is_trigger: bool = False) -> None:
        """Adds a line of the console's own to the timeline."""
        self.feed.add_lines(
            [{"time_ms": time.time() * 1000, "who": who, "text": text, "rule": "", "is_trigger": is_trigger}]
        )

    def look(self) -> None:
        """Reads again now."""
        self._news.set()

    # loops

    async def _for_ever(self, turn: Turn) -> None:
        while True:
            began = time.monotonic()
            with contextlib.suppress(
                NoAnswer, ClusterError, OSError
            ):  # no answer is no news: the brokers' states say it
                await turn.read()
            took_s = time.monotonic() - began
            pause_s = max(turn.every_s - took_s, REST * took_s if took_s > LONG_S else 0.0)
            if not turn.is_early_for_news:
                await asyncio.sleep(pause_s)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._news.wait()
            await asyncio.sleep(CALM_S)
            self._news.clear()

    async def _read_partitions(self) -> None:
        broker = best_to_ask(self._links.seen)
        if broker is not None:
            self._partitions = await reading.partitions(self._links, broker)
        self._publish()

    async def _read_offsets(self) -> None:
        found = await reading.high_watermarks(self._links, self._partitions)
        at = time.monotonic()
        # A partition that nobody leads keeps the last offset that is known.
        self._offsets = {
            name: offset for name, offset in {**self._offsets, **found}.items() if name in self._partitions
        }
        self.feed.set("offsets", self._offsets)
        self._publish_lags()
        self._add_point(at, found)

    async def _read_groups(self) -> None:
        asked = [
            int(broker)
            for broker, entry in self.feed.state["brokers"].items()
            if entry["state"] == BrokerState.RUNNING.value
        ]
        if asked:
            self._groups = await reading.groups(self._links, asked, self._groups)
        self._publish_lags()

    async def _read_moves(self) -> None:
        controller = controller_of(self._links.seen)
        if controller is not None:
            self._moves = await reading.moves(self._links, controller)
            self.feed.set("moves", self._moves)

    async def _look_at_processes(self) -> None:
        """Finds out who is paused, and which faults wait to be healed."""
        target, record = self._target, self._record
        assert target is not None
        assert record is not None
        for broker in target.broker_ids:
            seen = self._links.seen.get(broker)
            if seen is not None and seen.is_connected and (seen.is_silent or seen.is_paused):
                state = await asyncio.to_thread(target.broker(broker).state)
                self._links.set_paused(broker, state is State.PAUSED)
        unhealed: dict[str, list[str]] = {}
        for noted in await asyncio.to_thread(record.all):
            unhealed.setdefault(noted.said, []).append(
                "ZooKeeper" if noted.broker is None else f"broker {noted.broker}"
            )
        self.feed.set("unhealed", unhealed)

    async def _follow_events(self) -> None:
        assert self._sources is not None
        if self._following is None:
            offsets, lines = await asyncio.to_thread(self._history, self._sources)
            self._following = Following(offsets)
        else:
            new = await asyncio.to_thread(lambda logs: {log.broker: log.read() for log in logs}, self._sources.logs)
            events = self._following.ready(new)
            if not events:
                return
            lines = list(self._story.lines(map(self._noted, events)))
        self.feed.add_lines(map(line_json, lines))
        self._news.set()

    def _history(self, found: Sources) -> tuple[list[ClockOffset], Sequence[Line]]:
        """The clocks, and the last lines of what happened before the console was started. Raises ClusterError."""
        offsets = clocks_of(found)
        self._story = Story()  # an attempt that failed left half a story
        return offsets, deque(self._story.lines(map(self._noted, history_of(found, offsets))), LINES_MAX)

    def _noted(self, event: Event) -> Event:
        epoch = event.row.get("controller_epoch")
        if isinstance(epoch, int):
            self._epoch = max(epoch, self._epoch or 0)
        return event

    # publishing

    def _on_brokers(self) -> None:
        """A broker came or went."""
        self._publish()
        self._news.set()

    def _publish(self) -> None:
        brokers = brokers_section(self._links.seen, self._partitions)
        down = [int(broker) for broker, entry in brokers.items() if entry["state"] == BrokerState.DOWN.value]
        self.feed.set("brokers", brokers)
        self.feed.set("partitions", self._partitions)
        self.feed.set(
            "cluster",
            {
                "controller": controller_of(self._links.seen),
                "controller_epoch": self._epoch,
                "problem": "" if best_to_ask(self._links.seen) is not None else NOBODY_ANSWERS,
                **counts(self._partitions, down, self._moves),
            },
        )

    def _publish_lags(self) -> None:
        committed = {group: row.committed for group, row in self._groups.items() if row.committed is not None}
        of_groups, of_partitions = group_lags(committed, self._offsets)
        self.feed.set("lags", of_partitions)
        self.feed.set(
            "groups",
            {
                group: {
                    "state": row.state,
                    "coordinator": row.coordinator,
                    "members": row.members,
                    "lag": of_groups[group][0] if group in of_groups else None,
                    "partitions": of_groups[group][1] if group in of_groups else None,
                }
                for group, row in self._groups.items()
            },
        )

    def _add_point(self, at_s: float, offsets: Mapping[str, int]) -> None:
        running = {
            broker: self._links.answer_s[broker] * 1000
            for broker, each in self._links.seen.items()
            if each.is_connected and not each.is_silent and broker in self._links.answer_s
        }
        self.feed.add_point(
            {
                "time_ms": round(time.time() * 1000),
                "records": self._rates.of(at_s, offsets),
                "answer_ms": {str(broker): round(answer_ms, 2) for broker, answer_ms in running.items()},
                **(self._metrics.point() if self._metrics is not None else {}),
            }
        )


def line_json(line: Line) -> dict[str, Any]:
    """A line of the timeline for the page."""
    return {
        "time_ms": line.at_ms,
        "who": line.who,
        "text": line.text,
        "rule": line.rule,
        "is_trigger": line.is_trigger,
    }
