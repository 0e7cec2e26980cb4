"""Attacks on TLS and on logins (BAD-34). They are in `ATTACKS` with the others, and play against the same cluster.

Beside the canary, which speaks in the clear, someone logs in during an attack, and complains if that takes long.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.hostile.attacks import INT32_MAX, Target, array, attack, connections, frame, push
from tests.support.wire import Wire

LISTENER = "LOGINS"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USER, PASSWORD = "alice", "the-secret-of-alice"
LOCAL, OTHER = "127.0.0.1", "127.0.0.2"
LOGIN_MAX_S = 3.0
"""How long a login may take during an attack, on a slow machine."""
ANSWER_S = 10.0
ENDED_S = 5.0


@cache
def context_for(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


@contextlib.contextmanager
def encrypted(target: Target, port: int, source: str = LOCAL) -> Iterator[Wire]:
    with Wire(port, timeout_s=ANSWER_S, source=source) as wire:
        wire.socket = context_for(target.login.authority).wrap_socket(wire.socket, server_hostname=LOCAL)
        yield wire


def authenticate(wire: Wire, password: str = PASSWORD) -> int:
    """By PLAIN. -> the error code"""
    assert wire.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}).error_code == 0
    token = f"\0{USER}\0{password}".encode()
    return int(wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token}).error_code)


def login_works(target: Target, port: int, source: str = LOCAL) -> str | None:
    """A client of TLS logs in, and is served; the complaint if that takes long."""
    begun = time.monotonic()
    try:
        with encrypted(target, port, source) as wire:
            code = authenticate(wire)
            brokers = wire.call(ApiKey.METADATA, 1, {"topics": ()}).brokers
    except OSError as problem:
        return f"no login from {source} within {time.monotonic() - begun:.2f} s: {problem!r}"
    if code or not brokers:
        return f"the login from {source} is answered with {code}"
    seconds = time.monotonic() - begun
    return f"a login from {source} took {seconds:.2f} s" if seconds > LOGIN_MAX_S else None


def is_ended(connection: socket.socket) -> bool:
    """Whether the broker ends the connection, after whatever it answers, long before any time limit of its own."""
    connection.settimeout(ENDED_S)
    try:
        while connection.recv(64 * 1024):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def first_record() -> bytes:
    """A whole ClientHello."""
    sent = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), sent, server_hostname=LOCAL)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def login_port(target: Target) -> int:
    return target.login.ports[target.rng.choice(target.cluster.broker_ids)]


@attack
def wrong_protocols(target: Target) -> str | None:
    """Requests in the clear, HTTP and nothing at all to a listener with TLS; TLS to one without."""
    port, hello = login_port(target), first_record()
    clear = frame(ApiKey.METADATA, 1, array([]))
    sent = 0
    for number in range(900):
        for to, data in ((port, (clear, b"GET / HTTP/1.1\r\n\r\n", b"")[number % 3]), (target.port(), hello)):
            with contextlib.suppress(OSError), socket.create_connection((LOCAL, to), timeout=2) as connection:
                connection.sendall(data)
                sent += 1
    for to, data in ((port, clear), (target.port(), hello)):
        with socket.create_connection((LOCAL, to), timeout=ANSWER_S) as connection:
            connection.sendall(data)
            if not is_ended(connection):
                return f"the port {to} leaves a connection of the wrong protocol open"
    return login_works(target, port) or (None if sent > 900 else f"only {sent} of 1,800 connections were taken")


@attack
def silent_handshakes(target: Target) -> str | None:
    """3,000 connections of one address that send nothing, a byte, or half a ClientHello; the same address logs in meanwhile."""
    port, hello = login_port(target), first_record()
    with connections(port, 3000) as opened:
        for number, connection in enumerate(opened):
            push(connection, (b"", hello[:1], hello[:200])[number % 3])
        for at in range(5):
            for connection in opened[2::3]:
                push(connection, hello[200 + at : 201 + at])
            if complaint := login_works(target, port):
                return complaint
    return None if len(opened) == 3000 else f"only {len(opened)} connections were taken"


@attack
def half_handshakes(target: Target) -> str | None:
    """Hundreds of one address that send a whole ClientHello, and hold the rest back; another address logs in meanwhile."""
    port, hello = login_port(target), first_record()
    with connections(port, 600, OTHER) as opened:
        for connection in opened:
            push(connection, hello)
        for _ in range(5):
            if complaint := login_works(target, port):
                return complaint
    return None if len(opened) == 600 else f"only {len(opened)} connections were taken"


@attack
def many_handshakes(target: Target) -> str | None:
    """Whole handshakes without a login, as many as go in three seconds, on twenty threads; one in three is broken off by a reset."""
    port, ends = login_port(target), time.monotonic() + 3

    def shake_hands(thread: int) -> int:
        count = 0
        while time.monotonic() < ends:
            with contextlib.suppress(OSError), encrypted(target, port, OTHER) as wire:
                count += 1
                if count % 3 == 0:
                    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return count

    with ThreadPoolExecutor(20) as pool:
        counts = pool.map(shake_hands, range(20))
        complaint = login_works(target, port)
        return complaint or (None if sum(counts) > 20 else "hardly any handshake was done")


@attack
def renegotiation(target: Target) -> str | None:
    """TLS 1.2 with a new handshake in the connection, by openssl's client: twenty connections try."""
    port = login_port(target)
    command = ["openssl", "s_client", "-tls1_2", "-connect", f"{LOCAL}:{port}", "-CAfile", str(target.login.authority)]

    def printed(typed: bytes) -> bytes:
        done = subprocess.run(command, input=typed, capture_output=True, timeout=ANSWER_S, check=False)
        return done.stdout + done.stderr

    verified = b"verify return:1"  # a line for each certificate, in each handshake
    once = printed(b"").count(verified)
    if not once:
        return "openssl verified nothing"
    for _ in range(20):
        seen = printed(b"R\n")
        if b"RENEGOTIATING" not in seen:
            return f"openssl did not try: {seen[-300:]!r}"
        if seen.count(verified) != once:
            return "the broker has negotiated again"
    return login_works(target, port)


@attack
def guesses(target: Target) -> str | None:
    """BAD-35: wrong passwords as fast as the broker takes them, on fifty connections at a time for three seconds."""
    port, ends = login_port(target), time.monotonic() + 3
    guessed, wrong_answers = [0] * 50, list[int]()

    def guess(thread: int) -> None:
        while time.monotonic() < ends:
            with contextlib.suppress(OSError), encrypted(target, port, OTHER) as wire:
                code = authenticate(wire, os.urandom(8).hex())
                guessed[thread] += 1
                if code != ErrorCode.SASL_AUTHENTICATION_FAILED:
                    wrong_answers.append(code)

    threads = [threading.Thread(target=guess, args=[number]) for number in range(50)]
    for thread in threads:
        thread.start()
    complaint = login_works(target, port)
    for thread in threads:
        thread.join()
    if wrong_answers:
        return f"a guess is answered with {wrong_answers[0]}"
    return complaint or (None if sum(guessed) else "no guess was answered")


@attack
def frames_before_a_login(target: Target) -> str | None:
    """BAD-35: unknown mechanisms, huge frames, and requests that come before the login: each ends the connection."""
    port = login_port(target)
    requests = [
        frame(ApiKey.SASL_HANDSHAKE, 1, struct.pack(">h", 20) + b"x" * 20),
        frame(ApiKey.SASL_HANDSHAKE, 1, struct.pack(">h", 16_000) + b"x" * 16_000),
        frame(ApiKey.SASL_AUTHENTICATE, 1, struct.pack(">i", INT32_MAX)),
        frame(ApiKey.METADATA, 1, struct.pack(">i", INT32_MAX)),
        struct.pack(">i", INT32_MAX) + b"x" * 100_000,
        struct.pack(">i", -1),
        frame(ApiKey.API_VERSIONS, 0, b"") * 500,
    ]
    for _ in range(10):
        for request in requests:
            with encrypted(target, port) as wire:
                with contextlib.suppress(ConnectionError, ssl.SSLError):  # it may end before all is sent
                    wire.socket.sendall(request)
                if not is_ended(wire.socket):
                    return f"a connection stays open after {request[:20]!r}"
    return login_works(target, port)


@attack
def handshakes_without_a_login(target: Target) -> str | None:
    """A thousand connections of many addresses that have shaken hands, and do not log in."""
    port = login_port(target)
    with contextlib.ExitStack() as stack:

        def hold(number: int) -> bool:
            with contextlib.suppress(OSError):
                stack.enter_context(encrypted(target, port, f"127.0.0.{2 + number % 24}"))
                return True
            return False

        with ThreadPoolExecutor(8) as pool:
            held = sum(pool.map(hold, range(1000)))
        return login_works(target, port) or (None if held > 500 else f"only {held} handshakes were done")
