"""The directory of a proxy: what commands must know of it.

DIR/links.json               where clients connect, and where the brokers are
DIR/broker-1/faults          the socket for rules about the requests of broker 1
DIR/broker-1/events.jsonl    which requests were hit, as brokers write it
DIR/lock                     held by the proxy
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.conversation.rule import FAULT_SOCKET
from protocol.types import Address
from tools.cluster.processes import ClusterError
from tools.private_files import write_anew

DEFAULT_DIRECTORY = Path("ottla-links")
CLAIMS = "claims-"


@dataclass(frozen=True, slots=True)
class Known:
    """`listen`: `host:port` for clients. `brokers`: broker -> its own address."""

    listen: str
    brokers: Mapping[int, Address]


class LinksDirectory:
    """The methods raise ClusterError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path / "links.json"

    def rules_socket(self, broker: int) -> Path:
        return self.path / f"broker-{broker}" / FAULT_SOCKET

    def events(self, broker: int) -> Path:
        return self.path / f"broker-{broker}" / "events.jsonl"

    def read(self) -> Known:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            brokers = {int(broker): (str(host), int(port)) for broker, (host, port) in found["brokers"].items()}
            return Known(str(found["listen"]), brokers)
        except FileNotFoundError:
            raise ClusterError(
                f"no links run in {self.path}: `ottla links --bootstrap-server HOST:PORT --dir {self.path}` starts them"
            ) from None
        except OSError as problem:
            raise ClusterError(f"{self._file} cannot be read: {problem.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ClusterError(f"{self._file} is not as `ottla links` writes it: {problem!r}") from None

    def write(self, known: Known) -> None:
        rows = {str(broker): list(address) for broker, address in sorted(known.brokers.items())}
        try:
            write_anew(self._file, json.dumps({"listen": known.listen, "brokers": rows}, indent=1) + "\n")
        except OSError as problem:
            raise ClusterError(f"{self._file} cannot be written: {problem.strerror}") from None

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """For the proxy: no other one uses the directory meanwhile. Rules end with it, and those of one that was killed are forgotten."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise ClusterError(f"--dir {self.path}: {problem.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ClusterError(f"other links run in {self.path}: give another --dir") from None
        try:
            self._forget()
            yield
        finally:
            self._forget()
            os.close(lock)

    def _forget(self) -> None:
        for path in [self._file, self.path / "unhealed.json", *self.path.glob(f"broker-*/{FAULT_SOCKET}")]:
            path.unlink(missing_ok=True)
        for path in self.path.glob(f"{CLAIMS}*"):
            shutil.rmtree(path, ignore_errors=True)
