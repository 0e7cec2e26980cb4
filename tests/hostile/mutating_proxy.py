"""Stands between real clients and brokers, and changes some of the requests on their way (BAD-1..24).

The brokers announce the proxy's ports on a listener of their own (`listeners_of`), so that clients never get past it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import threading

from tests.hostile.mutated_clients import CLIENTS
from tests.support.mutations import mutate
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ports import free_ports

LISTENER = "MUTATED"
MUTATED_SHARE = 0.03
"""Of the requests: more, and the clients get nowhere."""
WRONG_LENGTH_SHARE = 0.1
FRAME_MAX = 1 << 27


class MutatingProxy:
    """One port for each broker. `start` and `close` are called from any thread; `mutated` counts requests."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._targets: dict[int, int] = {}
        """Own port -> the broker's."""
        self.ports: dict[int, int] = {}
        self.mutated = 0
        self.passed = 0

    def add_listeners(self, cluster: LocalCluster) -> None:
        """Between `create` and `start` of the cluster: each broker gets a listener whose announced port is the proxy's."""
        brokers = cluster.broker_ids
        ports = free_ports(2 * len(brokers))
        for at, broker in enumerate(brokers):
            own, self.ports[broker] = ports[2 * at : 2 * at + 2]
            file = cluster.broker_directory(broker) / "server.properties"
            rows = dict(line.partition("=")[::2] for line in file.read_text().splitlines() if not line.startswith("#"))
            announced = rows["listeners"] + f",{LISTENER}://127.0.0.1:{self.ports[broker]}"
            rows["listeners"] += f",{LISTENER}://127.0.0.1:{own}"
            rows["advertised.listeners"] = announced
            rows["listener.security.protocol.map"] += f",{LISTENER}:PLAINTEXT"
            file.write_text("".join(f"{key}={value}\n" for key, value in rows.items() if key))
            self._targets[self.ports[broker]] = own

    def start(self) -> None:
        self._thread.start()

        async def listen() -> None:
            for port, own in self._targets.items():
                await asyncio.start_server(lambda r, w, own=own: self._serve(r, w, own), "127.0.0.1", port)  # type: ignore[misc]

        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            answers, requests = await asyncio.open_connection("127.0.0.1", port)
            back = asyncio.create_task(_copy(answers, writer))
            try:
                while True:
                    length = await reader.readexactly(4)
                    size = int.from_bytes(length, "big")
                    if size > FRAME_MAX:
                        break
                    requests.write(self._changed(length, await reader.readexactly(size)))
                    await requests.drain()
            finally:
                requests.close()
                back.cancel()
        writer.close()

    def _changed(self, length: bytes, payload: bytes) -> bytes:
        if self._rng.random() > MUTATED_SHARE:
            self.passed += 1
            return length + payload
        self.mutated += 1
        changed = mutate(payload, self._rng)
        if self._rng.random() < WRONG_LENGTH_SHARE:
            return length + changed
        return len(changed).to_bytes(4, "big") + changed


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


class MutatedTraffic:
    """The proxy, and a process of each client behind it."""

    def __init__(self, proxy: MutatingProxy, seed: int) -> None:
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in proxy.ports.values())
        command = ["nice", sys.executable, "-m", "tests.hostile.mutated_clients"]
        self._processes = [
            subprocess.Popen(
                [*command, "--client", client, "--bootstrap", bootstrap, "--seed", str(seed)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for client in CLIENTS
        ]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
