"""Ends another process's ZooKeeper session, as if it had expired (FLT-20)."""

from __future__ import annotations

import struct

from protocol.tls import ClientTls
from protocol.zk.handshake import open_connection

TIMEOUT_S = 10.0
PASSWORD_SECRET = 0xB3415C00
"""ZooKeeper computes a session's password from its id and this number (`ZooKeeperServer.superSecret`)."""


def expire_session(address: tuple[str, int], session_id: int, tls: ClientTls | None = None) -> None:
    """Connects as a second client of that session and closes it. The id is the `ephemeralOwner` of the session's nodes.

    `tls`: for a port with TLS. Raises LookupError if the session does not exist, OSError if ZooKeeper cannot be reached.
    """
    password = session_password(session_id)
    connect = struct.pack("!iqiqi", 0, 0, 10_000, session_id, len(password)) + password + b"\0"
    close = struct.pack("!ii", 1, -11)
    with open_connection(address, address[0], TIMEOUT_S, tls, TIMEOUT_S) as connection:
        connection.sendall(_framed(connect) + _framed(close))
        answers = b""
        while chunk := connection.recv(4096):
            answers += chunk
    if len(answers) < 12:
        raise ConnectionError("ZooKeeper ended the connection without an answer")
    (granted_timeout_ms,) = struct.unpack_from("!i", answers, 8)
    if granted_timeout_ms <= 0:
        raise LookupError(f"session {session_id:#x} does not exist")


def session_password(session_id: int) -> bytes:
    """The 16 bytes of the password for this session id: `new java.util.Random(id ^ secret).nextBytes(...)`."""
    state = ((session_id ^ PASSWORD_SECRET) ^ 0x5DEECE66D) & (2**48 - 1)
    password = b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & (2**48 - 1)
        password += (state >> 16).to_bytes(4, "little")
    return password


def _framed(message: bytes) -> bytes:
    return struct.pack("!i", len(message)) + message
