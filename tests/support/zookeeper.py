"""A real ZooKeeper of a test's own, and faults for it. Knows nothing of pytest."""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
import time
import types
from pathlib import Path

from tools.cluster.ports import LOCAL_HOST, free_ports
from tools.cluster.zookeeper import EmbeddedZooKeeper, Stores
from tools.faults.session_expiry import expire_session

START_TIMEOUT_S = 30.0


class ZooKeeperEnsemble:
    """Three servers that replicate each other; it serves as long as two of them run. `with` stops and removes all."""

    SIZE = 3

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._servers = [EmbeddedZooKeeper(directory / f"zookeeper-{n}") for n in range(1, self.SIZE + 1)]

    def __enter__(self) -> ZooKeeperEnsemble:
        ports = free_ports(3 * self.SIZE)
        members = "".join(
            f"server.{n + 1}={LOCAL_HOST}:{ports[3 * n + 1]}:{ports[3 * n + 2]}\n" for n in range(self.SIZE)
        )
        try:
            for n, server in enumerate(self._servers):
                server.create(ports[3 * n])
                with server.config_file.open("a") as config:
                    config.write(f"initLimit=20\nsyncLimit=10\n{members}")
                (server.directory / "data").mkdir()
                (server.directory / "data" / "myid").write_text(f"{n + 1}\n")
                server.start()
            for server in self._servers:
                server.wait_ready(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: types.TracebackType | type[BaseException] | BaseException | None) -> None:
        self.close()

    @property
    def connect(self) -> str:
        """`host:port,host:port,host:port`."""
        return ",".join(server.connect for server in self._servers)

    def restart(self, n: int) -> None:
        """Kills the n-th server, from 0, starts it again, and waits until it serves as a part of the ensemble."""
        self._servers[n].process.kill()
        self._servers[n].start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.has_joined(n):
            assert time.monotonic() < deadline, f"ZooKeeper {n + 1} does not join the others"
            time.sleep(0.05)

    def has_joined(self, n: int) -> bool:
        """True when the server follows or leads; `ruok` alone says only that the process runs."""
        try:
            with socket.create_connection(self._servers[n].address, 1) as connection:
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return False
        return b"Mode: follower" in answer or b"Mode: leader" in answer

    def close(self) -> None:
        for server in self._servers:
            if server.exists():
                server.process.kill()


class ZooKeeperServer:
    """`with ZooKeeperServer() as server:` has a ZooKeeper at `server.connect`, in a temporary directory by default."""

    def __init__(self, directory: Path | None = None, stores: Stores | None = None) -> None:
        """With `stores`, its port has TLS."""
        self._is_temporary = directory is None
        self._stores = stores
        self.directory = Path(tempfile.mkdtemp(prefix="ottla-zookeeper-")) if directory is None else directory
        self._zookeeper = EmbeddedZooKeeper(self.directory)

    def __enter__(self) -> ZooKeeperServer:
        try:
            self._zookeeper.create(free_ports(1)[0], self._stores)
            self.prepare()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: types.TracebackType | type[BaseException] | BaseException | None) -> None:
        self.close()

    def prepare(self) -> None:
        """Changes the files before the first start."""

    @property
    def address(self) -> tuple[str, int]:
        return self._zookeeper.address

    @property
    def connect(self) -> str:
        """`host:port`."""
        return self._zookeeper.connect

    def start(self) -> None:
        """Starts it, also again after `stop`, with the same port and data; returns when it serves."""
        self._zookeeper.start()
        self._zookeeper.wait_ready(START_TIMEOUT_S)

    def stop(self) -> None:
        """SIGKILL: ZooKeeper has nothing to tidy up."""
        self._zookeeper.process.kill()

    def pause(self) -> None:
        self._zookeeper.process.send(signal.SIGSTOP)

    def resume(self) -> None:
        self._zookeeper.process.send(signal.SIGCONT)

    def close(self) -> None:
        self.stop()
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def expire_session(self, session_id: int) -> None:
        """Ends somebody else's session (FLT-20)."""
        expire_session(self.address, session_id, self._zookeeper.tls())
