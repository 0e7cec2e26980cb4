"""The fault buttons: carries out what a page asks for, one fault after the other, and undoes in time what has an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tools.faults.cluster import Cluster
from tools.faults.record import FaultRecord
from tools.faults.script import DoneFault, Faulted, why_impossible
from tools.faults.words import LASTING, FaultError, Words, parse_words

SAID_MAX = 500

Say = Callable[[str, bool], None]
"""(what was done, whether it is a failure that may begin a story)"""


class Harm:
    """Faults of one cluster. `say` is told of each; with `is_logged`, the cluster's own log tells those that succeed."""

    def __init__(self, cluster: Cluster, say: Say, *, is_logged: bool = False) -> None:
        self._cluster = cluster
        self._say = say
        self._is_logged = is_logged
        self._faulted = Faulted(cluster, (), record=FaultRecord(cluster.record_file))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="faults")
        self._undoing: dict[asyncio.Task[None], Words] = {}

    def actions(self) -> list[str]:
        """The actions that this cluster can have."""
        return [verb for verb in BUTTONS if verb not in self._cluster.impossible]

    def has_zookeeper(self) -> bool:
        return self._cluster.zookeeper() is not None

    async def carry_out(self, said: str) -> list[str]:
        """Does what a line such as `kill leader of t-0 for 5s` says; returns whom it hit. Raises FaultError, also if it failed."""
        words = self._parsed(said)
        loop = asyncio.get_running_loop()
        rows, victims = await loop.run_in_executor(self._worker, self._faulted.carry_out, words)
        self._tell(rows)
        failed = [row.error for row in rows if row.error]
        if failed:
            raise FaultError(failed[0])
        if words.lasts_s is not None and victims:
            task = loop.create_task(self._undo_after(words))
            self._undoing[task] = words
            task.add_done_callback(self._undoing.pop)
        return [str(row) for row in rows]

    async def close(self) -> None:
        """Undoes at once what was to be undone later. Other faults last until `ottla fault heal`."""
        waiting = list(self._undoing.values())
        for task in list(self._undoing):
            task.cancel()
        loop = asyncio.get_running_loop()
        self._faulted.is_over.set()
        for words in waiting:
            self._tell(await loop.run_in_executor(self._worker, self._faulted.undo_noted, words))
        self._worker.shutdown(wait=True)

    def _parsed(self, said: str) -> Words:
        """Raises FaultError."""
        if len(said) > SAID_MAX:
            raise FaultError(f"a fault has at most {SAID_MAX} characters")
        words = parse_words(said)
        if words.role == "it":
            raise FaultError("`it` is for scripts; name a role")
        if words.at_s is not None:
            raise FaultError("`at` is for scripts; a fault of the console happens at once")
        reason = why_impossible(words, self._cluster)
        if reason is not None:
            raise FaultError(reason)
        return words

    async def _undo_after(self, words: Words) -> None:
        assert words.lasts_s is not None
        await asyncio.sleep(words.lasts_s)
        loop = asyncio.get_running_loop()
        self._tell(await loop.run_in_executor(self._worker, self._faulted.undo_noted, words))

    def _tell(self, rows: list[DoneFault]) -> None:
        for row in rows:
            if row.error or not self._is_logged:
                self._say(str(row), row.verb in LASTING and not row.error)


BUTTONS = ("kill", "stop", "pause", "bounce", "restart", "resume", "isolate", "expire-session", "fill-disk", "heal")
"""`cut` needs words of its own: `ottla fault cut` has them."""
