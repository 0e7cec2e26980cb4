"""Any Kafka cluster as the victim of faults that a program of the user carries out, such as a script that calls ssh or kubectl.

The program is called with the action, the broker's id, host and port: `./harm kill 2 kafka2 9092`. It returns when the action is
done, with exit code 0, or else with a complaint on its standard error. `start` follows a kill or a stop, `resume` a pause.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.kafka.api_keys import ApiKey
from tools.cluster.processes import ClusterError
from tools.cluster.readiness import METADATA_VERSION, ask_broker
from tools.faults.cluster import State

Address = tuple[str, int]

ANSWER_TIMEOUT_S = 10.0
PROGRAM_TIMEOUT_S = 120.0
NO_SESSIONS = "--fault-command cannot expire a session"


@dataclass
class CommandedBroker:
    """A broker that a program harms. Its state is what the program was last asked for. The methods raise ClusterError."""

    program: tuple[str, ...]
    broker_id: int
    address: Address
    _state: State = field(default=State.RUNNING, init=False)

    def state(self) -> State:
        return self._state

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

    def _do(self, action: str, afterwards: State) -> None:
        host, port = self.address
        called = [*self.program, action, str(self.broker_id), host, str(port)]
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
        self._state = afterwards


class CommandedCluster:
    """The brokers that Metadata lists when it is made. Its ZooKeeper or its KRaft controllers are not victims."""

    impossible: Mapping[str, str] = {"expire-session": NO_SESSIONS}

    def __init__(self, command: str, addresses: Mapping[int, Address]) -> None:
        """`addresses`: of each broker. Raises ClusterError if the command is not one."""
        try:
            program = tuple(shlex.split(command))
        except ValueError as problem:
            raise ClusterError(f"--fault-command {command!r}: {problem}") from None
        if not program:
            raise ClusterError("--fault-command is empty")
        self._brokers = {broker: CommandedBroker(program, broker, address) for broker, address in addresses.items()}

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._brokers))

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in map(self.address, self.broker_ids))

    def address(self, broker_id: int) -> Address:
        return self._brokers[broker_id].address

    def broker(self, broker_id: int) -> CommandedBroker:
        return self._brokers[broker_id]

    def zookeeper(self) -> None:
        return None


def brokers_of(bootstrap: Sequence[Address]) -> dict[int, Address]:
    """Broker -> its address, from the first of these addresses that answers. Raises ClusterError."""
    for address in bootstrap:
        answer = ask_broker(
            address,
            ANSWER_TIMEOUT_S,
            ApiKey.METADATA,
            METADATA_VERSION,
            {"topics": [], "allow_auto_topic_creation": False},
        )
        if answer is not None and answer.brokers:
            return {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in answer.brokers}
    names = ", ".join(f"{host}:{port}" for host, port in bootstrap)
    raise ClusterError(
        f"nobody at {names} says which brokers there are. Faults ask without TLS and SASL: --fault-command needs a plain listener"
    )
