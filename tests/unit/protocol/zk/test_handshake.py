"""Connections to servers that are no ZooKeeper with the right certificate: the reason in words, and nothing left open."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest

from protocol.tls import Identity, load_identity, trust
from protocol.zk.handshake import open_connection, refusal

pytest.importorskip("cryptography")

from tools.cluster.secured.authority import Authority, past_validity

TIMEOUT_S = 5.0
HOST = "127.0.0.1"


class Client:
    """Trusts one authority."""

    def __init__(self, authority: Authority) -> None:
        self.client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust(self.client_context, [authority.certificate])


@contextlib.contextmanager
def served(treat: Callable[[socket.socket], object]) -> Iterator[tuple[str, int]]:
    """A port whose first connection is treated so."""

    def serve() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            connection.settimeout(TIMEOUT_S)
            treat(connection)

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def by_tls(certificate: str) -> Callable[[socket.socket], object]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key, _, rest = certificate.partition("-----BEGIN CERTIFICATE-----")
    load_identity(context, Identity(key, f"-----BEGIN CERTIFICATE-----{rest}"), "")
    return lambda connection: context.wrap_socket(connection, server_side=True).recv(1)


def test_the_reasons() -> None:
    authority = Authority.new("authority")
    client = Client(authority)
    cases: list[tuple[Callable[[socket.socket], object], str]] = [
        (by_tls(authority.sign("x", [HOST], past_validity())), "its certificate is not valid (certificate has expired): see"),
        (by_tls(Authority.new("other").sign("x", [HOST])), "its certificate is not valid (unable to get local issuer certificate): see"),
        (by_tls(authority.sign("x", ["elsewhere"])), "its certificate is not for this host (IP address mismatch"),
        (lambda connection: (connection.recv(4096), connection.sendall(b"HTTP/1.1 400 no\r\n\r\n")), "it speaks no TLS"),
        (lambda connection: connection.recv(4096), "it ended the handshake of TLS: is this port its secureClientPort"),
    ]  # fmt: skip
    for treat, expected in cases:
        with served(treat) as address, pytest.raises(OSError) as failed:
            open_connection(address, HOST, TIMEOUT_S, client, TIMEOUT_S)
        assert refusal(failed.value, uses_tls=True).startswith(expected)


def test_a_silent_server_is_given_up_and_one_that_is_not_there_has_no_reason() -> None:
    client = Client(Authority.new("authority"))
    ended = threading.Event()
    with served(lambda _: ended.wait(TIMEOUT_S)) as address:
        with pytest.raises(TimeoutError) as silent:
            open_connection(address, HOST, TIMEOUT_S, client, 0.1)
        ended.set()
    with pytest.raises(ConnectionRefusedError) as nobody:
        open_connection(address, HOST, TIMEOUT_S, client, 0.1)
    assert [refusal(failed.value, uses_tls=True) for failed in (silent, nobody)] == ["", ""]
    assert refusal(nobody.value, uses_tls=False) == ""


def test_the_right_server() -> None:
    authority = Authority.new("authority")
    with (
        served(by_tls(authority.sign("x", [HOST]))) as address,
        open_connection(address, HOST, TIMEOUT_S, Client(authority), TIMEOUT_S) as connection,
    ):
        assert isinstance(connection, ssl.SSLSocket)
        connection.sendall(b"x")
