"""The brokers' recordings over HTTP: status, and files (`broker/recording/recording_page.py`).

DescribeConfigs of each broker gives the address of its page: the setting `metrics.listener`. A listener on all addresses is reached at
the broker's host for clients.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.numbers import is_plain_number
from tools.admin.cluster_view import ClusterView
from tools.admin.config_values import BROKERS, ConfigValue, Entity
from tools.admin.kafka_admin import KafkaAdmin
from tools.failures import AdminError

TIMEOUT_S = 10.0
STATUS_BYTES_MAX = 1024 * 1024
ALL_ADDRESSES = ("", "0.0.0.0", "::")
NUMBERS = ("broker", "since_ns", "requests", "rows", "dropped", "refused", "estimated")
"""Fields of a status that have the same name on the page."""
SAFE_NAME = re.compile(r"recording-[A-Za-z0-9_-]{1,80}\.rows")

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The brokers are never behind a proxy."""


class PageError(AdminError):
    """A page that does not answer as one. The text says which and why."""


@dataclass(frozen=True, slots=True)
class RecordingStatus:
    """What a broker says about its recording. `id` is "" if there is none; `is_written`: its files do not change any more."""

    broker: int
    id: str
    is_recording: bool
    is_written: bool
    since_ns: int
    requests: int
    rows: int
    dropped: int
    refused: int
    estimated: int
    problem: str
    files: Mapping[str, int]
    clock_ahead_s: float
    """How far the broker's wall clock is ahead of this machine's, give or take half of `round_trip_s`."""
    round_trip_s: float

    @property
    def bytes(self) -> int:
        return sum(self.files.values())


@dataclass(frozen=True, slots=True)
class BrokerPage:
    """The page of one broker. `address` is host:port; "" if the broker did not give it, and `problem` says why."""

    broker: int
    address: str
    problem: str = ""

    def status(self) -> RecordingStatus:
        """Raises PageError."""
        if self.problem:
            raise PageError(f"broker {self.broker} does not answer: {self.problem}")
        began = time.time()
        try:
            with _opener.open(f"http://{self.address}/recording", timeout=TIMEOUT_S) as answer:
                found = json.loads(answer.read(STATUS_BYTES_MAX))
            ended = time.time()
            status = RecordingStatus(
                **{name: int(found[name]) for name in NUMBERS},
                id=str(found["id"]),
                is_recording=bool(found["recording"]),
                is_written=bool(found["written"]),
                problem=str(found["problem"]),
                files={str(file["name"]): int(file["bytes"]) for file in found["files"]},
                clock_ahead_s=int(found["now_ns"]) / 1e9 - (began + ended) / 2,
                round_trip_s=ended - began,
            )
        except (OSError, http.client.HTTPException) as problem:
            raise PageError(f"broker {self.broker} does not answer at {self.address}: {_reason(problem)}") from None
        except (ValueError, KeyError, TypeError):
            raise PageError(f"{self.address} is not the page of an ottla broker") from None
        if status.broker != self.broker:
            raise PageError(f"{self.address} is broker {status.broker}, not broker {self.broker}")
        return status

    def download(self, name: str, directory: Path) -> Path:
        """Copies a file of the recording. Raises PageError if it does not come whole, OSError if it cannot be written."""
        if not SAFE_NAME.fullmatch(name):
            raise PageError(f"broker {self.broker} names a file {name!r}, which is not one of a recording")
        path = directory / f"broker-{self.broker}-{name}"
        try:
            answer = _opener.open(f"http://{self.address}/recording/{name}", timeout=TIMEOUT_S)
        except (OSError, http.client.HTTPException) as problem:
            raise PageError(f"broker {self.broker} does not send {name}: {_reason(problem)}") from None
        with answer, open(path, "xb") as file:
            try:
                shutil.copyfileobj(answer, file)
            except (TimeoutError, ConnectionError, http.client.HTTPException) as problem:
                raise PageError(f"broker {self.broker} stopped sending {name}: {_reason(problem)}") from None
            size, expected = file.tell(), int(answer.headers["Content-Length"])
        if size != expected:
            raise PageError(f"broker {self.broker} stopped sending {name} after {size} of {expected} bytes")
        return path


def pages_of(cluster: ClusterView, admin: KafkaAdmin, given: Mapping[int, str]) -> list[BrokerPage]:
    """The pages of all live brokers, by id. `given` addresses replace those that the brokers name.

    A broker that has just died may still count as live; its page has the problem. Raises AdminError if a broker cannot record.
    """
    pages = []
    for node in sorted(cluster.nodes, key=lambda node: node.id):
        entity = Entity(BROKERS, str(node.id))
        try:
            own = admin.describe_configs([entity])[entity]
        except AdminError as problem:
            pages.append(BrokerPage(node.id, "", str(problem)))
            continue
        if "recorder.id" not in own:
            raise AdminError(
                f"broker {node.id} cannot record, because it is not one of ottla; "
                "import its request log instead: ottla replay trace import request-log"
            )
        pages.append(BrokerPage(node.id, given.get(node.id) or _address(node.id, node.host, own)))
    return pages


def _address(broker: int, client_host: str, settings: Mapping[str, ConfigValue]) -> str:
    listener = settings["metrics.listener"].value if "metrics.listener" in settings else None
    host, _, port = (listener or "").rpartition(":")
    if not is_plain_number(port) or port == "0":
        raise AdminError(
            f"broker {broker} has no address for its recording: set metrics.listener=host:port in its server.properties "
            f"and restart it, or give its address with --page {broker}=HOST:PORT"
        )
    if host.strip("[]") in ALL_ADDRESSES:
        host = f"[{client_host}]" if ":" in client_host else client_host
    return f"{host}:{port}"


def parse_pages(texts: Sequence[str]) -> dict[int, str]:
    """The addresses in `ID=HOST:PORT`. Raises AdminError."""
    found = {}
    for text in texts:
        broker, _, address = text.partition("=")
        host, _, port = address.rpartition(":")
        if not (is_plain_number(broker) and host and is_plain_number(port)):
            raise AdminError(f"--page {text!r}: expected ID=HOST:PORT, for example 1=127.0.0.1:9404")
        found[int(broker)] = address
    return found


def _reason(problem: Exception) -> str:
    reason = problem.reason if isinstance(problem, urllib.error.URLError) else problem
    return str(getattr(reason, "strerror", None) or reason or type(reason).__name__)
