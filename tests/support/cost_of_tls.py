"""What TLS and a login cost a broker, beside a real Kafka with the same certificates.

    python -m tests.support.cost_of_tls --rounds 3 [--compiled | --plain]

Each has one broker with three listeners: in the clear, SSL, SASL_SSL by PLAIN. In each round both are started anew, one after the
other, in the other order than the round before. The numbers are CPU time of the broker's process, the kernel's included, while a client
sends as fast as it gets answers: it is the same for both, and its own time does not count. The ciphers are those on which both sides agree
by default; the output names them.
"""

from __future__ import annotations

import contextlib
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.kafka.api_keys import ApiKey
from tests.hostile.attacks_on_logins import context_for
from tests.support.certificates import Certificates
from tests.support.secured import PLAIN
from tests.support.wire import Wire
from tools.bench.closed_loop.request_plan import batch, fetch_frame, produce_frame
from tools.bench.compare.clusters import chosen_form
from tools.bench.real_kafka.jars import find_jars
from tools.bench.real_kafka.running import AS_SHIPPED, running_kafka
from tools.cluster import ownership
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ports import free_ports

HOST = "127.0.0.1"
CLEAR, SSL, SASL_SSL = "PLAINTEXT", "SSL", "SASL_SSL"
PROTOCOLS = (CLEAR, SSL, SASL_SSL)
OTTLA, KAFKA = "ottla", "Kafka"
USER, PASSWORD = "alice", "the-secret-of-alice"
FETCHED_BYTES = 64 * 1024
MIB = 1024**2
FIRST_WARM_UP_S = 10.0
"""After a start, besides the one of each load."""
SETTINGS = {
    "message.max.bytes": "2097152",
    "auto.create.topics.enable": "false",
    "log.retention.check.interval.ms": "1000",
}


@dataclass(frozen=True, slots=True)
class Load:
    """`connections` have one request under way each, to one partition."""

    title: str
    unit: str
    connections: int
    record_bytes: int
    is_fetch: bool = False

    def request(self, topic: str) -> bytes:
        if self.is_fetch:
            frame = fetch_frame(topic, 0, FETCHED_BYTES)
            return frame.data[: frame.offset_at] + struct.pack(">q", 0) + frame.data[frame.offset_at + 8 :]
        return produce_frame([(topic, 0)], 1, batch(self.record_bytes, 1, round(time.time() * 1000)))

    def in_its_unit(self, cpu_s: float, requests: int) -> float:
        """Microseconds for a request, or milliseconds for a MiB."""
        if self.unit == "us/request":
            return cpu_s / requests * 1e6
        return cpu_s * 1000 / (requests * (FETCHED_BYTES if self.is_fetch else self.record_bytes) / MIB)


LOADS = (
    Load("produce 20 x 1, 100 B", "us/request", 20, 100),
    Load("fetch 1 x 1, 64 KB", "ms/MiB", 1, FETCHED_BYTES, is_fetch=True),
    Load("produce 4 x 1, 1 MB", "ms/MiB", 4, MIB),
)


@dataclass(frozen=True, slots=True)
class Broker:
    ports: dict[str, int]
    """By protocol."""
    process: psutil.Process

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


def listeners(made: Certificates) -> dict[str, str]:
    return {
        **SETTINGS,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(made.broker),
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{PLAIN} user_{USER}="{PASSWORD}";',
    }


@contextlib.contextmanager
def ottla(directory: Path, made: Certificates) -> Iterator[Broker]:
    cluster = LocalCluster(directory)
    ports = dict(zip((SSL, SASL_SSL), free_ports(2), strict=True))
    try:
        cluster.create(1, overrides={**listeners(made), "inter.broker.listener.name": ""})
        file = cluster.broker_directory(1) / "server.properties"
        (line,) = [line for line in file.read_text().splitlines() if line.startswith("listeners=")]
        more = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
        with file.open("a") as end:
            end.write(f"{line},{more}\n")
        cluster.start()
        cluster.wait_ready()
        pid = cluster.pid(1)
        assert pid is not None
        yield Broker({CLEAR: cluster.port(1), **ports}, psutil.Process(pid))
    finally:
        cluster.destroy()


@contextlib.contextmanager
def kafka(directory: Path, made: Certificates) -> Iterator[Broker]:
    ports = dict(zip((SSL, SASL_SSL), free_ports(2), strict=True))
    more = {name: [port] for name, port in ports.items()}
    with running_kafka(directory, find_jars(), 1, listeners(made), more, AS_SHIPPED) as running:
        clear = int(running.addresses[0].rpartition(":")[2])
        yield Broker({CLEAR: clear, **ports}, psutil.Process(running.pids[0]))


def connect(broker: Broker, protocol: str, made: Certificates) -> Wire:
    wire = Wire(broker.ports[protocol], HOST, timeout_s=60)
    if protocol != CLEAR:
        wire.socket = context_for(made.authority).wrap_socket(wire.socket, server_hostname=HOST)
    if protocol == SASL_SSL:
        assert wire.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}).error_code == 0
        token = f"\0{USER}\0{PASSWORD}".encode()
        assert wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token}).error_code == 0
    return wire


def send_for(seconds: float, wires: Sequence[Wire], request: bytes, least: int) -> int:
    """Sends on each connection when it has its answer. -> requests. An answer with less than `least` bytes is an error."""
    ends, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < ends:
        for wire in wires:
            wire.send_raw(request)
        for wire in wires:
            answer = wire.receive_frame()
            assert len(answer) >= least, answer
        count += len(wires)
    return count


def new_topic(broker: Broker, load: Load, number: int, made: Certificates) -> str:
    """With enough in it for a fetch."""
    name = f"cost-{number}"
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{broker.ports[CLEAR]}", "log_level": 0})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    with connect(broker, CLEAR, made) as wire:
        if load.is_fetch:
            wire.send_raw(produce_frame([(name, 0)], 1, batch(FETCHED_BYTES, 1, round(time.time() * 1000))))
            wire.receive_frame()
    return name


def measured(
    broker: Broker, made: Certificates, seconds: float, warm_up_s: float, numbers: Iterator[int]
) -> dict[tuple[str, str], float]:
    """(load, protocol) -> its cost."""
    found, is_first = {}, True
    for load in LOADS:
        least = FETCHED_BYTES if load.is_fetch else 40
        for protocol in PROTOCOLS:
            topic = new_topic(broker, load, next(numbers), made)
            request = load.request(topic)
            with contextlib.ExitStack() as stack:
                wires = [stack.enter_context(connect(broker, protocol, made)) for _ in range(load.connections)]
                send_for(warm_up_s + (FIRST_WARM_UP_S if is_first else 0), wires, request, least)
                is_first = False
                before = broker.cpu_s()
                requests = send_for(seconds, wires, request, least)
                found[load.title, protocol] = load.in_its_unit(broker.cpu_s() - before, requests)
    return found


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=3.0, show_default=True, help="How long a load counts.")
@click.option("--warm-up", default=3.0, show_default=True, help="Seconds of the same load before it counts.")
@click.option(
    "--compiled/--plain", "is_compiled", default=None, help="The form of our broker; without it, the one that is there."
)
def main(rounds: int, seconds: float, warm_up: float, is_compiled: bool | None) -> None:
    """Print the cost of each load and protocol: the median of the rounds, and the least and the most."""
    ownership.own_servers()
    costs: dict[str, dict[tuple[str, str], list[float]]] = {OTTLA: {}, KAFKA: {}}
    with tempfile.TemporaryDirectory(prefix="ottla-tls-") as name, chosen_form(is_compiled) as form:
        (certificates := Path(name, "certificates")).mkdir()
        made = Certificates(certificates)
        starts = {OTTLA: ottla, KAFKA: kafka}
        for number in range(rounds):
            for who in list(starts) if number % 2 == 0 else list(starts)[::-1]:
                with starts[who](Path(name, f"{who}-{number}"), made) as broker:
                    if number == 0:
                        with connect(broker, SSL, made) as wire:
                            click.echo(f"{who}: {wire.socket.cipher()}")
                    for key, cost in measured(broker, made, seconds, warm_up, iter(range(1000))).items():
                        costs[who].setdefault(key, []).append(cost)
    click.echo(f"our broker: {form}")
    for load in LOADS:
        for protocol in PROTOCOLS:
            cells = []
            for who, of_who in costs.items():
                values = of_who[load.title, protocol]
                cells.append(f"{who} {statistics.median(values):7.2f} ({min(values):.2f}..{max(values):.2f})")
            click.echo(f"{load.title:<24} {protocol:<10} {'   '.join(cells)}   {load.unit}")


if __name__ == "__main__":
    sys.exit(main())
