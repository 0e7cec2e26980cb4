"""Any Kafka cluster as the victim of faults that a program of the user carries out, such as a script that calls ssh or kubectl.

The program is called with the action, the broker's id, host and port: `./harm kill 2 kafka2 9092`. It returns when the action is
done, with exit code 0, or else with a complaint on its standard error. `start` follows a kill or a stop, `resume` a pause, `heal` a
`cut` or a `fill-disk`. `cut`, which is also called for `isolate`, gets the words of the fault behind the port: `from peers one-way in`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.conversation.rule import Rule
from protocol.kafka.api_keys import ApiKey
from protocol.types import Address
from tools.admin.bootstrap import no_answer
from tools.cluster.ports import accepts_connections
from tools.cluster.processes import ClusterError
from tools.faults.cluster import OF_REQUESTS, State
from tools.faults.record import state_directory
from tools.faults.roles import METADATA_VERSION
from tools.faults.words import Breakage
from tools.private_files import write_anew
from tools.wire.client import ask
from tools.wire.security import PLAINTEXT, Security

ANSWER_TIMEOUT_S = 10.0
PROGRAM_TIMEOUT_S = 120.0
NO_RULES = "--fault-command cannot break single requests: use --dir"
NO_SESSIONS = "--fault-command cannot expire a session"


@dataclass
class CommandedBroker:
    """A broker that a program harms. Its state is that of the last action which the program carried out. The methods raise ClusterError."""

    program: tuple[str, ...]
    broker_id: int | None
    address: Address
    remember: Callable[[], None] = lambda: None
    """Called after each change."""
    current: State = State.RUNNING
    is_harmed: bool = False
    """Whether links are cut, or the disk is filled."""

    def state(self) -> State:
        return self.current

    def kill(self) -> None:
        self._do("kill", State.ENDED)

    def stop(self) -> None:
        self._do("stop", State.ENDED)

    def start(self) -> None:
        self._do("start", State.RUNNING)

    def pause(self) -> None:
        self._do("pause", State.PAUSED)

    def resume(self) -> None:
        self._do("resume", State.RUNNING)

    def expire_session(self) -> None:
        raise ClusterError(NO_SESSIONS)

    def sever(self, breakage: Breakage) -> None:
        self.is_harmed = True
        self._do("cut", self.current, *str(breakage).split())

    def join(self, breakage: Breakage | None) -> None:
        """The program heals all links at once."""
        if self.is_harmed:
            self._do("heal", self.current)
            self.is_harmed = False
            self.remember()

    def add_rule(self, rule: Rule) -> None:
        raise ClusterError(NO_RULES)

    def remove_rules(self, ids: Sequence[str] | None) -> None:
        """There are none."""

    def fill_disk(self) -> None:
        self.is_harmed = True
        self._do("fill-disk", self.current)

    def free_disk(self) -> None:
        self.join(None)

    def _do(self, action: str, afterwards: State, *words: str) -> None:
        host, port = self.address
        called = [*self.program, action, str(self.broker_id), host, str(port), *words]
        self.remember()  # before: the program may be interrupted half-way
        try:
            done = subprocess.run(
                called,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PROGRAM_TIMEOUT_S,
                check=False,
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
            )
        except OSError as problem:
            raise ClusterError(f"{self.program[0]}: {problem.strerror or problem}") from None
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{shlex.join(called)} did not end within {PROGRAM_TIMEOUT_S:.0f} s") from None
        if done.returncode != 0:
            complaint = done.stderr.strip().splitlines() or ["it says nothing on standard error"]
            raise ClusterError(f"{shlex.join(called)} ended with exit code {done.returncode}: {complaint[-1]}")
        self.current = afterwards
        self.remember()


class CommandedCluster:
    """The brokers that Metadata lists when it is made. Its ZooKeeper or its KRaft controllers are not victims."""

    impossible: Mapping[str, str] = {"expire-session": NO_SESSIONS, OF_REQUESTS: NO_RULES}

    def __init__(self, command: str, addresses: Mapping[int, Address], name: str = "") -> None:
        """`addresses`: of each broker. `name`: of the cluster, under which faults are remembered until they are healed; empty: they
        are not. Raises ClusterError if the command is not one.
        """
        try:
            program = tuple(shlex.split(command))
        except ValueError as problem:
            raise ClusterError(f"--fault-command {command!r}: {problem}") from None
        if not program:
            raise ClusterError("--fault-command is empty")
        key = hashlib.sha256(f"{command}\n{name}".encode()).hexdigest()[:16]
        self._memory = state_directory() / f"command-{key}-brokers.json" if name else None
        self.record_file: Path = state_directory() / f"command-{key}.json"
        self._brokers = {
            broker: CommandedBroker(program, broker, address, self._remember) for broker, address in addresses.items()
        }
        for broker, (address, state, is_harmed) in self._remembered().items():
            known = self._brokers.setdefault(broker, CommandedBroker(program, broker, address, self._remember))
            known.current, known.is_harmed = state, is_harmed

    def shared_claims(self) -> str:
        return ""

    def drop_claims(self) -> None:
        """There are none."""

    def _remember(self) -> None:
        """Writes the harmed brokers to a file, because Metadata does not list brokers that are down."""
        if self._memory is None:
            return
        rows = {
            str(number): [*broker.address, broker.current.value, broker.is_harmed]
            for number, broker in self._brokers.items()
            if broker.current is not State.RUNNING or broker.is_harmed
        }
        try:
            if rows:
                self._memory.parent.mkdir(parents=True, exist_ok=True)
                write_anew(self._memory, json.dumps(rows))
            else:
                self._memory.unlink(missing_ok=True)
        except OSError as problem:
            raise ClusterError(f"{self._memory} cannot be written: {problem.strerror}") from None

    def _remembered(self) -> dict[int, tuple[Address, State, bool]]:
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            rows = json.loads(self._memory.read_text()) if self._memory is not None else {}
            return {
                int(number): ((str(host), int(port)), State(state), bool(is_harmed))
                for number, (host, port, state, is_harmed) in rows.items()
            }
        return {}

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._brokers))

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in map(self.address, self.broker_ids))

    @property
    def security(self) -> Security:
        return PLAINTEXT

    def address(self, broker_id: int) -> Address:
        return self._brokers[broker_id].address

    def broker(self, broker_id: int) -> CommandedBroker:
        return self._brokers[broker_id]

    def zookeeper(self) -> None:
        return None


def brokers_of(bootstrap: Sequence[Address]) -> dict[int, Address]:
    """Broker -> its address, from the first of these addresses that answers. Raises ClusterError."""
    for address in bootstrap:
        answer = ask(
            address,
            ANSWER_TIMEOUT_S,
            ApiKey.METADATA,
            METADATA_VERSION,
            {"topics": [], "allow_auto_topic_creation": False},
        )
        if answer is not None and answer.brokers:
            return {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in answer.brokers}
    names = ",".join(f"{host}:{port}" for host, port in bootstrap)
    if not any(accepts_connections(host, port, ANSWER_TIMEOUT_S) for host, port in bootstrap):
        raise ClusterError(no_answer(names))
    raise ClusterError(
        f"nobody at {names} says which brokers there are. Faults ask without TLS and SASL: --fault-command needs a plain listener"
    )
