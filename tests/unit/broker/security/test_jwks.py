"""The keys of issued tokens come from a file or an address, whatever the other side does."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from broker.security import jwks
from broker.security.jwks import BYTES_MAX, Keys, fetched
from broker.settings.bearer import KeySource
from broker.settings.config import ConfigError
from tests.unit.broker.security.test_signed_tokens import ROWS

SET = json.dumps({"keys": ROWS[:2]}).encode()
Answer = Callable[[BaseHTTPRequestHandler], None]


def source(url: str, refresh_ms: int = 3_600_000) -> KeySource:
    return KeySource(url, refresh_ms, 1, 5)


class Issuer:
    """An address whose answers a test decides."""

    def __init__(self) -> None:
        self.answer: Answer = sends(SET)
        self.asked = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                issuer.answer(self)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"

    def __enter__(self) -> Issuer:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def sends(data: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)

    return answer


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@contextmanager
def following(keys: Keys) -> Iterator[None]:
    task = asyncio.get_running_loop().create_task(keys.run())
    try:
        yield
    finally:
        task.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  another thread changes it
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (sends(b"x" * (BYTES_MAX + 1)), f"more than {BYTES_MAX} bytes"),
        (sends(b"", 500), "500"),
        (sends(SET, 302, Location="http://127.0.0.1:1/"), "302"),
        (sends(SET, 302, Location="file:///etc/passwd"), "302"),
    ],
)
def test_what_is_not_taken(issuer: Issuer, answer: Answer, reason: str) -> None:
    issuer.answer = answer
    with pytest.raises((OSError, ValueError), match=reason):
        fetched(source(issuer.url))


def test_a_hundred_megabytes_are_not_read(issuer: Issuer) -> None:
    sent = 0

    def answer(request: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        request.send_response(200)
        request.end_headers()
        for _ in range(1600):
            request.wfile.write(b" " * 65536)
            sent += 65536

    issuer.answer = answer
    with pytest.raises(ValueError, match="more than"):
        fetched(source(issuer.url))
    assert sent < 50 * 1024 * 1024


async def test_the_earlier_keys_stay(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys(source(issuer.url, refresh_ms=10))
    await keys.start()
    assert [key.kid for key in keys.keys] == ["r", "c"]
    issuer.answer = sends(b"{}")
    with following(keys):
        asked = issuer.asked
        await until(lambda: issuer.asked > asked + 2)
        assert [key.kid for key in keys.keys] == ["r", "c"]
        issuer.answer = sends(json.dumps({"keys": ROWS[:1]}).encode())
        await until(lambda: len(keys.keys) == 1)
    assert caplog.text.count("cannot be fetched") == 1


async def test_keys_that_cannot_be_used_are_named_once(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    """Not again at each fetch."""
    weak = [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": f"weak {number}"} for number in range(50)]
    issuer.answer = sends(json.dumps({"keys": [*ROWS[:1], *weak]}).encode())
    keys = Keys(source(issuer.url, refresh_ms=10))
    with following(keys):
        asked = issuer.asked
        await until(lambda: issuer.asked > asked + 2)
        assert [row.message.count("weak ") for row in caplog.records if "left out" in row.message] == [5]
        issuer.answer = sends(json.dumps({"keys": [*ROWS[:1], *weak[1:]]}).encode())
        asked = issuer.asked
        await until(lambda: issuer.asked > asked + 2)
    assert caplog.text.count("left out") == 2


async def test_keys_are_not_read_on_the_loop(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An issuer's set may have thousands."""
    readers: list[threading.Thread] = []
    read = jwks.read_keys
    monkeypatch.setattr(jwks, "read_keys", lambda data: (readers.append(threading.current_thread()), read(data))[1])
    await Keys(source(issuer.url)).start()
    assert len(readers) == 1
    assert readers[0] is not threading.main_thread()


async def test_an_issuer_that_hangs_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SILENCE_S", "FETCH_S"):
        monkeypatch.setattr(jwks, name, 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        keys = Keys(source(f"http://127.0.0.1:{listening.getsockname()[1]}/"))
        async with asyncio.timeout(5):
            await keys.start()
    assert keys.keys == ()


async def test_an_unknown_key_makes_the_next_fetch_come_earlier_and_not_more_often(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "EXPEDITED_S", 0.2)
    keys = Keys(source(issuer.url))
    await keys.start()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with following(keys):
        while issuer.asked < 3:
            keys.missed()
            await asyncio.sleep(0.001)
    assert loop.time() - began >= 0.4


async def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "the keys.json"
    path.write_bytes(SET)
    keys = Keys(source(path.as_uri()))
    await keys.start()
    assert len(keys.keys) == 2
    path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        await Keys(source(path.as_uri())).start()
