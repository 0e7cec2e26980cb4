"""Time and chance of the interpreter, for code that asks it and not its machine (`time.monotonic`, `random.random`, `uuid.uuid4`)."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from broker.storage import segment
from broker.transactions import transaction
from tools.sim.world.event_loop import ProcessLoop
from tools.sim.world.scheduler import START_S, WALL_START_S, Scheduler


@contextmanager
def controlled(scheduler: Scheduler, seed: int, sent_from_file: int, producer_epochs: int) -> Iterator[None]:
    """Within this context, the modules `time`, `random` and `os.urandom` follow the virtual time and the seed.

    Records of `sent_from_file` bytes are sent from their files already: clients of the world do not ask for many. `producer_epochs` is
    the last epoch of a producer: none lives for long.

    Garbage is not collected: a collection runs code (the `finally` of a coroutine that nobody holds) at a time that no seed decides.
    """

    def monotonic() -> float:
        loop = asyncio._get_running_loop()
        return loop.time() if isinstance(loop, ProcessLoop) else scheduler.now

    def wall() -> float:
        loop = asyncio._get_running_loop()
        return loop.wall_s() if isinstance(loop, ProcessLoop) else scheduler.now - START_S + WALL_START_S

    source = random.Random(f"chance {seed}")
    replaced: dict[tuple[Any, str], Any] = {
        (time, "monotonic"): monotonic,
        (time, "perf_counter"): monotonic,
        (time, "time"): wall,
        (time, "monotonic_ns"): lambda: int(monotonic() * 1e9),
        (time, "time_ns"): lambda: int(wall() * 1e9),
        (os, "urandom"): source.randbytes,
        (segment, "SENT_FROM_FILE"): sent_from_file,
        (transaction, "EPOCH_MAX"): producer_epochs,
    }
    before = {key: getattr(*key) for key in replaced}
    state, collects = random.getstate(), gc.isenabled()
    for (module, name), function in replaced.items():
        setattr(module, name, function)
    random.seed(f"module {seed}")
    gc.disable()
    try:
        yield
    finally:
        for (module, name), function in before.items():
            setattr(module, name, function)
        random.setstate(cast(Any, state))
        if collects:
            gc.enable()
