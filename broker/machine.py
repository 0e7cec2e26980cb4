"""What a broker takes from the machine that it runs on. `broker.main` gives it the real one; a simulated world gives it another."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from broker.process import descriptors, server_log
from broker.process.audit_log import AUDIT_LOG_NAME, AuditLog
from broker.process.clock import Clock, SystemClock
from broker.process.event_log import EventLog
from broker.process.freed_memory import give_back_regularly
from broker.process.loop_watchdog import LoopWatchdog
from broker.process.stopping import LastResort
from broker.storage.disk.filesystem import FileSystem
from protocol.conversation.rule import FAULT_SOCKET
from protocol.zk.access import ZooKeeperAccess
from protocol.zk.session import ZooKeeperSession


def keep_out_of_collections() -> None:
    """Excludes existing objects from garbage collection, because most of them stay. A scan of them took 0.3 to 0.5 s for 10,000
    partitions (NET-4)."""
    gc.collect(0)
    gc.freeze()


@dataclass
class Machine:
    """Clock, disk, ZooKeeper, logs, and what belongs to a process of its own. The network is the running loop's.

    `open_zookeeper(hosts, session_timeout_ms, access)`: a session that is not started. `descriptor_limit()`: how many files
    and connections the process may have open. `housekeeping`: coroutines that run as long as the broker. `say`: tells whoever started
    the process. `fault_socket`: where its owner injects faults, if `broker.fault.injection` allows them; None: nowhere.
    """

    clock: Clock
    filesystem: FileSystem
    events: EventLog
    watchdog: LoopWatchdog
    audit: AuditLog = field(default_factory=lambda: AuditLog(None, SystemClock()))
    open_zookeeper: Callable[[str, int, ZooKeeperAccess], ZooKeeperSession] = field(
        default=lambda hosts, timeout_ms, access: ZooKeeperSession(hosts, session_timeout_ms=timeout_ms, access=access)
    )
    last_resort: LastResort = field(default_factory=LastResort)
    random: Random = field(default_factory=Random)
    descriptor_limit: Callable[[], int] = descriptors.limit_now
    keep_out_of_collections: Callable[[], None] = keep_out_of_collections
    housekeeping: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (give_back_regularly,)
    say: Callable[[str], None] = server_log.say
    fault_socket: Path | None = None


def this_machine(event_log_path: Path | None) -> Machine:
    """The real machine. The audit log and the socket for faults are beside the event log. Needs a running loop."""
    clock = SystemClock()
    events = EventLog(event_log_path, clock)
    audit = AuditLog(event_log_path.with_name(AUDIT_LOG_NAME) if event_log_path is not None else None, clock)
    socket = event_log_path.with_name(FAULT_SOCKET) if event_log_path is not None else None
    watchdog = LoopWatchdog(events.write, asyncio.get_running_loop())
    return Machine(clock, FileSystem(), events, watchdog, audit, fault_socket=socket)
