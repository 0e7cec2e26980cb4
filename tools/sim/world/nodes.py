"""A broker's machine in the simulated world: its host, its disk, and the process of the broker, which is killed, paused, started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from broker.machine import Machine
from broker.main import Broker
from broker.process.event_log import EventLog
from broker.process.loop_watchdog import LoopWatchdog, TurnTimes
from broker.process.stopping import LastResort
from broker.settings import config_sources
from broker.storage.directories.log_directory import LogDirectoryError
from broker.storage.disk.spare_descriptors import SpareDescriptors
from protocol.zk.kazoo_client import Mailbox, SessionObserver
from protocol.zk.session import ZooKeeperSession
from tools.sim.world.disk import ANY_LOSS, Loss, MemoryDisk
from tools.sim.world.event_loop import ProcessLoop
from tools.sim.world.network import Network
from tools.sim.world.scheduler import START_S, WALL_START_S, Scheduler
from tools.sim.world.zookeeper import ZooKeeper, ZooKeeperClient

CLIENT_PORT, CONTROL_PORT = 9092, 9093
LOG_DIRS = ("/data", "/more")
"""A broker has the first one or both. Each is a volume of its own."""
DESCRIPTORS = 20_000
LOSS_OF_VOLUMES = Loss("volumes", "mixed")
SUPERVISOR_S = 2.0
"""A broker that has stopped because its disk has failed is started again after that time."""


class NodeClock:
    """The clocks of one process."""

    def __init__(self, loop: ProcessLoop) -> None:
        self.monotonic = loop.time
        self.since_boot = loop.time
        self._wall_s = loop.wall_s

    def wall_ms(self) -> int:
        return int(self._wall_s() * 1000)


class Events(EventLog):
    """An event log that goes to the world's record. Its times are right, also while the broker's clock is not: it tells one story."""

    def __init__(self, loop: ProcessLoop, write: Callable[..., None]) -> None:
        self._loop = loop
        self._to = write

    def write(self, kind: str, **fields: Any) -> None:
        if not self._loop.is_dead:
            self._to(_right_ms(self._loop), kind, fields)

    def close(self) -> None:
        """There is no file."""


class NoWatchdog(LoopWatchdog):
    """Turns take no real time here."""

    def __init__(self) -> None:
        self.times = TurnTimes()

    def start(self) -> None:
        """Nothing to watch."""

    def close(self) -> None:
        """Nothing was started."""


class NoLastResort(LastResort):
    """Virtual time goes on whatever a loop does. A real thread would end the process of the whole world."""

    def begin(self, seconds: float) -> None:
        """Starts nothing."""

    def cancel(self) -> None:
        """Nothing was started."""


class NoSpare(SpareDescriptors):
    """The simulated disk counts its own descriptors."""

    def keep(self, count: int) -> None:
        """Opens none."""

    def fill(self) -> None:
        """Opens none."""


class SimulatedSession(ZooKeeperSession):
    """The real session above a simulated connection."""

    def __init__(self, server: ZooKeeper, loop: ProcessLoop, hosts: str, timeout_ms: int) -> None:
        super().__init__(hosts, session_timeout_ms=timeout_ms, open_client=self._open)
        self._server = server
        self._process = loop
        self.simulated: ZooKeeperClient | None = None

    def _open(self, _hosts: str, timeout_ms: int, mailbox: Mailbox, observer: SessionObserver) -> ZooKeeperClient:
        self.simulated = ZooKeeperClient(self._server, self._process, timeout_ms / 1000, mailbox, observer)
        return self.simulated


class BrokerNode:
    """`broker` is None while no process runs. `record` gets the broker's events."""

    def __init__(
        self,
        broker_id: int,
        scheduler: Scheduler,
        network: Network,
        zookeeper: ZooKeeper,
        settings: Mapping[str, str],
        record: Callable[..., None],
        log_dirs: int = 1,
    ) -> None:
        self.id = broker_id
        self.log_dirs = LOG_DIRS[:log_dirs]
        self.name = f"broker-{broker_id}"
        self.before_cut: Callable[[int, str, bytearray, int], None] = lambda _broker, _path, _content, _size: None
        self.before_rename: Callable[[int, str], None] = lambda _broker, _path: None
        self.may_lose: Callable[[int, str], bool] = lambda _broker, _path: True
        """They are told what a disk tells or asks, with the broker's id."""
        self.after_power_loss: Callable[[int], None] = lambda _broker: None
        self.disk = MemoryDisk()
        self._prepare_disk(scheduler.random)
        self.host = network.host(self.name)
        self.host.read_open_file = lambda fd, size, position: self.disk.sent(fd, size, position)
        self.loop: ProcessLoop | None = None
        self.broker: Broker | None = None
        self.session: SimulatedSession | None = None
        self.is_ready = False
        self.lives = 0
        self.failure: BaseException | None = None
        """Why the last process ended by itself, if it did."""
        self.failures: list[str] = []
        """Errors that no code of an ended process caught."""
        self.graveyard: list[object] = []
        """What ended processes had. It is kept: collecting it would run their code."""
        self._scheduler = scheduler
        self._zookeeper = zookeeper
        self._settings = settings
        self._record = record
        self._stop: asyncio.Event | None = None
        self._main: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self.loop is not None

    @property
    def has_lost_a_directory(self) -> bool:
        """One of its log directories is offline until the next start (KIP-112)."""
        return self.is_ready and self.broker is not None and bool(self.broker._log_manager.offline_dirs)

    def start(self) -> None:
        """Starts a process. The host has power from now on."""
        assert self.loop is None
        self.host.is_up = True
        self.lives += 1
        self.is_ready = False
        self.failure = None
        loop = self.loop = ProcessLoop(self._scheduler, self.host, f"{self.name} life {self.lives}")
        self._event("process_started")
        loop.put(self._launch, loop, self.disk)

    def _launch(self, loop: ProcessLoop, disk: MemoryDisk) -> None:
        clock = NodeClock(loop)
        machine = Machine(
            clock=clock,
            filesystem=disk,
            events=Events(loop, partial(self._record, self.id)),
            watchdog=NoWatchdog(),
            last_resort=NoLastResort(),
            open_zookeeper=self._open_zookeeper,
            random=Random(f"{loop.name} {self._scheduler.random.random()}"),
            descriptor_limit=lambda: DESCRIPTORS,
            keep_out_of_collections=lambda: None,
            housekeeping=(),
            say=lambda _: self._ready(loop),
        )
        overrides = [f"{key}={value}" for key, value in self._all_settings().items()]
        loaded = config_sources.load(None, "", {}, overrides)
        self.broker = Broker(loaded.config, machine, loaded.given)
        stop = self._stop = asyncio.Event()
        main = self._main = loop.create_task(self.broker.run(stop), name=f"{self.name} main")
        main.add_done_callback(partial(self._ended, loop))

    def _all_settings(self) -> dict[str, str]:
        return {
            "broker.id": str(self.id),
            "listeners": f"PLAINTEXT://{self.name}:{CLIENT_PORT},CONTROLLER://{self.name}:{CONTROL_PORT}",
            "control.plane.listener.name": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "zookeeper.connect": "zookeeper:2181",
            "log.dirs": ",".join(self.log_dirs),
            "broker.rack": f"rack-{self.id}",
            **self._settings,
        }

    def _open_zookeeper(self, hosts: str, timeout_ms: int, *_: object) -> ZooKeeperSession:
        assert self.loop is not None
        self.session = SimulatedSession(self._zookeeper, self.loop, hosts, timeout_ms)
        return self.session

    def _ready(self, loop: ProcessLoop) -> None:
        if loop is self.loop:
            self.is_ready = True

    def _ended(self, loop: ProcessLoop, main: asyncio.Task[None]) -> None:
        if loop is not self.loop:
            return
        self.failure = main.exception() if not main.cancelled() else None
        self._event("process_ended", problem=str(self.failure or ""))
        has_lost_its_disk = self.disk.failed_calls > 0 and _is_of_a_disk(self.failure)
        if self.failure is not None and not has_lost_its_disk:
            self.failures.append(f"{loop.name} ended by {self.failure!r}")
        self._bury()
        if has_lost_its_disk:
            self._scheduler.call_after(SUPERVISOR_S, self._start_after, self.lives)

    def _start_after(self, life: int) -> None:
        if self.lives == life:
            self.start()

    def stop(self) -> None:
        """As SIGTERM does."""
        if self.loop is not None and self._stop is not None:
            self._event("stop_asked")
            self.loop.put(self._stop.set)

    def kill(self) -> None:
        """As SIGKILL does: what was written stays in the page cache."""
        if self.loop is not None:
            self._event("killed")
            self._bury()

    def lose_power(self, random: Random) -> None:
        """The disk has what was synced, and of the rest what a loss leaves. The host is away until `start`."""
        self._event("power_lost")
        self.host.is_up = False
        if self.loop is not None:
            self._bury(has_power=False)
        failures = self.disk.failures
        self.disk = self.disk.after_power_loss(random, ANY_LOSS if len(self.log_dirs) == 1 else LOSS_OF_VOLUMES)
        self.disk.failures = failures
        self._prepare_disk(random)
        self.after_power_loss(self.id)

    def replace_disk(self) -> None:
        """By an empty one. No process runs."""
        failures, self.disk = self.disk.failures, MemoryDisk()
        self.disk.failures = failures
        self._prepare_disk(self._scheduler.random)

    def _bury(self, *, has_power: bool = True) -> None:
        loop = self.loop
        assert loop is not None
        self.failures += loop.uncaught()
        loop.kill()
        self.host.process_ended([loop], has_power=has_power)
        self.graveyard.append((loop, self.broker, self.session, self._main, self.disk))
        self.loop = self.broker = self.session = self._stop = self._main = None
        self.is_ready = False
        failures = self.disk.failures
        self.disk = self.disk.for_next_process()
        self.disk.failures = failures
        self._prepare_disk(self._scheduler.random)

    def _prepare_disk(self, random: Random) -> None:
        self.disk.spare = NoSpare()
        self.disk.tears = random
        self.disk.before_cut = lambda path, content, size: self.before_cut(self.id, path, content, size)
        self.disk.before_rename = lambda path: self.before_rename(self.id, path)
        self.disk.may_lose = lambda path: self.may_lose(self.id, path)

    def _event(self, kind: str, **fields: Any) -> None:
        self._record(self.id, _right_ms(self.loop) if self.loop is not None else 0, kind, fields)


def _right_ms(loop: ProcessLoop) -> int:
    return int((WALL_START_S - START_S + loop.time()) * 1000)


def _is_of_a_disk(failure: BaseException | None) -> bool:
    if isinstance(failure, BaseExceptionGroup):
        return all(map(_is_of_a_disk, failure.exceptions))
    return isinstance(failure, LogDirectoryError | OSError)
