"""Any Kafka cluster behind `ottla links`, as the victim of faults in single requests.

A program of the user (`commanded.py`) carries out the others: its processes are not within reach of the links.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from protocol.conversation.rule import Rule
from protocol.json_lines import ask
from protocol.types import Address
from tools.cluster.processes import ClusterError
from tools.faults.cluster import State
from tools.faults.commanded import NO_SESSIONS, CommandedBroker, CommandedCluster
from tools.faults.record import RECORD
from tools.faults.rule_socket import RuleSocket
from tools.faults.words import VERBS, Breakage
from tools.links.links_directory import CLAIMS, LinksDirectory
from tools.wire.security import PLAINTEXT, Security

NO_PROCESSES = "links reach requests, and no processes; --fault-command beside --links carries out such faults"


@dataclass(frozen=True)
class ProxiedBroker:
    """A broker behind the links. `process`: by whom it is harmed itself, if somebody does. The methods raise ClusterError."""

    broker_id: int | None
    rules: RuleSocket
    process: CommandedBroker | None

    def state(self) -> State:
        """The links take rules in any case."""
        return State.RUNNING if self.process is None else self.process.state()

    def kill(self) -> None:
        self._process().kill()

    def stop(self) -> None:
        self._process().stop()

    def start(self) -> None:
        self._process().start()

    def pause(self) -> None:
        self._process().pause()

    def resume(self) -> None:
        self._process().resume()

    def expire_session(self) -> None:
        self._process().expire_session()

    def sever(self, breakage: Breakage) -> None:
        self._process().sever(breakage)

    def join(self, breakage: Breakage | None) -> None:
        if self.process is not None:
            self.process.join(breakage)

    def fill_disk(self) -> None:
        self._process().fill_disk()

    def free_disk(self) -> None:
        if self.process is not None:
            self.process.free_disk()

    def _process(self) -> CommandedBroker:
        if self.process is None:
            raise ClusterError(NO_PROCESSES)
        return self.process

    def add_rule(self, rule: Rule) -> None:
        self.rules.add(rule)

    def remove_rules(self, ids: Sequence[str] | None) -> None:
        self.rules.remove(ids)


class ProxiedCluster:
    """The brokers that the links know when it is made. Raises ClusterError without links."""

    def __init__(self, directory: Path, fault_command: str | None = None) -> None:
        self.directory = directory
        self._directory = LinksDirectory(directory)
        self._known = self._directory.read()
        self.record_file: Path = directory / RECORD
        self._processes: CommandedCluster | None = None
        self.impossible: Mapping[str, str] = dict.fromkeys((verb for verb in VERBS if verb != "heal"), NO_PROCESSES)
        if fault_command is not None:
            name = f"behind the links in {directory.absolute()}"
            self._processes = CommandedCluster(fault_command, self._known.brokers, name)
            self.impossible = {"expire-session": NO_SESSIONS}

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._known.brokers))

    @property
    def bootstrap_servers(self) -> str:
        return self._known.listen

    @property
    def security(self) -> Security:
        return PLAINTEXT

    def address(self, broker_id: int) -> Address:
        """Its own, so that no rule hits who asks for roles."""
        return self._known.brokers[broker_id]

    def broker(self, broker_id: int) -> ProxiedBroker:
        who = f"the process of the links in {self._directory.path}"
        rules = RuleSocket(partial(ask, self._directory.rules_socket(broker_id)), who, "it has ended")
        return ProxiedBroker(broker_id, rules, None if self._processes is None else self._processes.broker(broker_id))

    def zookeeper(self) -> None:
        return None

    def shared_claims(self) -> str:
        try:
            return tempfile.mkdtemp(prefix=CLAIMS, dir=self._directory.path.absolute())
        except OSError as problem:
            raise ClusterError(f"{self._directory.path} cannot be written: {problem.strerror}") from None

    def drop_claims(self) -> None:
        for directory in self._directory.path.glob(f"{CLAIMS}*"):
            shutil.rmtree(directory, ignore_errors=True)
