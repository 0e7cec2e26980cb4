"""The event loop of one simulated process: asyncio's interface on virtual time.

A loop keeps what asyncio promises: callbacks run in the order of `call_soon`, those that were ready at the start of a turn in this turn,
later ones in the next. The seed decides what asyncio leaves open: when a turn begins, how long it takes, in which order timers, the
network and finished threads come in between, and which of several processes goes on first.

Work for a thread (`run_in_executor`) runs in one piece, some time after the call, and its result comes some time after that. So anything
can happen between the call, the work and the result.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from itertools import count
from typing import TYPE_CHECKING, Any

from tools.sim.world.disk import IS_IN_THREAD
from tools.sim.world.scheduler import START_S, WALL_START_S, Scheduler

if TYPE_CHECKING:
    from tools.sim.world.network import Host

log = logging.getLogger(__name__)

TURN_S = 0.000_05
"""Mean time of the processor for one turn."""
LOOK_S = 0.000_001
"""Time that passes with each look at the clock, so that work in time slices comes to their ends."""
THREAD_S = 0.000_3
"""Mean time until a thread starts its work, and until the loop hears of its end."""
THREADS_MAX = 32


class Handle:
    """A callback that is to run, as asyncio and its users see it."""

    __slots__ = ("_when", "args", "callback", "context", "is_cancelled")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None = None,
        when: float = 0.0,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.is_cancelled = False
        self._when = when

    def cancel(self) -> None:
        """Whatever is to run it finds that, and does nothing. What the callback held is released at once."""
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when


def _nothing() -> None:
    """In the place of a callback that was cancelled."""


class ProcessLoop:
    """What asyncio, the brokers and their clients use of a loop. `host` is where the process runs.

    `kill` ends the process: nothing of it ever runs again.
    """

    def __init__(self, scheduler: Scheduler, host: Host, name: str) -> None:
        self.scheduler = scheduler
        self.host = host
        self._me: Any = self
        """For asyncio, whose types want a whole AbstractEventLoop."""
        self.name = name
        self.is_dead = False
        self.slow_thread_s = THREAD_S
        self.failures: list[dict[str, Any]] = []
        """What the loop's exception handler was told: errors that nobody caught."""
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks that are not done. One that nobody else holds is not collected, at a time that the interpreter would choose."""
        self._ready: deque[Handle] = deque()
        self._has_turn = False
        self._busy_until = 0.0
        self._paused_until = 0.0
        self._looked_s = 0.0
        self._threads: dict[object, _Threads] = {}

    # -- what the world does to the process ---------------------------------------------------------------------------

    def kill(self) -> None:
        self.is_dead = True
        self._ready.clear()
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def uncaught(self) -> list[str]:
        """Errors of callbacks and of tasks that nobody took."""
        found = [f"{self.name}: {context.get('message')}: {context.get('exception')!r}" for context in self.failures]
        found += [
            f"{self.name}: nobody took the error of {task.get_name()}: {task.exception()!r}"
            for task in self.tasks
            if task.done() and not task.cancelled() and task._log_traceback and task.exception() is not None
        ]
        return found

    def pause(self, seconds: float) -> None:
        """Stops the process for that time, as SIGSTOP and SIGCONT do."""
        self._paused_until = max(self._paused_until, self.scheduler.now + seconds)

    @property
    def is_paused(self) -> bool:
        return self.scheduler.now < self._paused_until

    def put(self, callback: Callable[..., object], *args: Any) -> None:
        """What the selector of a real loop finds: runs in one of the next turns."""
        self._put(Handle(callback, args))

    # -- time ---------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        self._looked_s += LOOK_S
        return self.scheduler.now + self._looked_s

    def wall_s(self) -> float:
        return WALL_START_S - START_S + self.time() + self.host.wall_ahead_s()

    # -- callbacks ----------------------------------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        self._put(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context, when)
        if not self.is_dead:
            self.scheduler.call_at(when, self._fire, handle)
        return handle

    def _fire(self, handle: Handle) -> None:
        if not handle.is_cancelled:
            self._put(handle)

    def _put(self, handle: Handle) -> None:
        if self.is_dead:
            return
        self._ready.append(handle)
        if not self._has_turn:
            self._has_turn = True
            self._plan_turn()

    def _plan_turn(self) -> None:
        scheduler = self.scheduler
        begin = max(scheduler.now, self._busy_until, self._paused_until)
        scheduler.call_at(begin + scheduler.random.random() * TURN_S, self._turn)

    def _turn(self) -> None:
        if self.is_dead:
            return
        if self.is_paused:
            self._plan_turn()
            return
        ready = self._ready
        self._looked_s = 0.0
        asyncio._set_running_loop(self._me)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.is_cancelled:
                    self._run(handle)
                    if self.is_dead:
                        return
        finally:
            asyncio._set_running_loop(None)
        self._busy_until = self.scheduler.now + self._looked_s + self.scheduler.soon(TURN_S)
        if ready:
            self._plan_turn()
        else:
            self._has_turn = False

    def _run(self, handle: Handle) -> None:
        try:
            handle.context.run(handle.callback, *handle.args)
        except BaseException as error:  # noqa: BLE001 - as asyncio does
            self.call_exception_handler({"message": f"Exception in callback {handle.callback!r}", "exception": error})

    # -- futures, tasks, threads --------------------------------------------------------------------------------------

    _new_task: Callable[..., asyncio.Task[Any]] = asyncio.Task

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._me)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task = self._new_task(coro, loop=self._me, name=name or f"{self.name} task", context=context)
        if self.is_dead:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.tasks.append(task)
        if len(self.tasks) % 256 == 0:
            self.tasks = [known for known in self.tasks if not known.done() or known._log_traceback]
        return task

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done = self.create_future()
        threads = self._threads.get(executor)
        if threads is None:
            threads = self._threads[executor] = _Threads(self, getattr(executor, "_max_workers", THREADS_MAX))
        threads.put(done, func, args)
        return done

    async def shutdown_default_executor(self) -> None:
        """There are no threads to wait for."""

    # -- the network --------------------------------------------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        """Every name is its own address."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return self.host.listen(self, protocol_factory, port, is_serving=options.get("start_serving", True))

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.host.connect(self, protocol_factory, host, port)

    # -- the rest of the interface ------------------------------------------------------------------------------------

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.failures.append(context)
            log.error("%s: %s", self.name, context.get("message"), exc_info=context.get("exception"))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)


class _Numbered:
    """Its hash is its number, and no address: a set of tasks, such as `asyncio.wait` makes, has the same order in every process."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _NumberedFuture(_Numbered, asyncio.Future[Any]):
    pass


class _NumberedTask(_Numbered, asyncio.Task[Any]):
    pass


class NumberingLoop(ProcessLoop):
    """For code that goes through sets of futures and tasks."""

    def __init__(self, scheduler: Scheduler, host: Host, name: str) -> None:
        super().__init__(scheduler, host, name)
        self._numbers = count(1)

    def create_future(self) -> asyncio.Future[Any]:
        future = _NumberedFuture(loop=self._me)
        future.number = next(self._numbers)
        return future

    def _new_task(self, *args: Any, **options: Any) -> asyncio.Task[Any]:
        task = _NumberedTask(*args, **options)
        task.number = next(self._numbers)
        return task


class _Threads:
    """The threads of one executor: so many at a time, the rest waits in order."""

    def __init__(self, loop: ProcessLoop, count: int) -> None:
        self._loop = loop
        self._free = count
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()

    def put(self, done: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._waiting.append((done, func, args))
        self._start()

    def _start(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            scheduler = self._loop.scheduler
            scheduler.call_after(scheduler.soon(self._loop.slow_thread_s), self._work, *self._waiting.popleft())

    def _work(self, done: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        loop = self._loop
        if loop.is_dead:
            return
        if loop.is_paused:
            loop.scheduler.call_at(loop._paused_until, self._work, done, func, args)
            return
        in_thread = IS_IN_THREAD.set(True)
        value, error = None, None
        try:
            value = func(*args)
        except Exception as problem:  # noqa: BLE001 - handed over, as an executor does
            error = problem
        finally:
            IS_IN_THREAD.reset(in_thread)
        loop.scheduler.call_after(loop.scheduler.soon(loop.slow_thread_s), self._end, done, value, error)

    def _end(self, done: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
        self._free += 1
        self._loop.put(_settle, done, value, error)
        self._start()


def _settle(done: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(value)
