"""A connection to a ZooKeeper server, by TLS or in the clear, and in words why there is none."""

from __future__ import annotations

import socket
import ssl

from protocol.tls import WITHOUT_TLS, ClientTls, tls_reason
from protocol.zk.access import ENABLE, KEYSTORE, SASL

ALERT = "alert "


def open_connection(
    address: tuple[str, int], host: str, timeout_s: float, tls: ClientTls | None, handshake_s: float
) -> socket.socket:
    """Connects, and with `tls` shakes hands; the certificate must be for `host`. Raises OSError (ssl.SSLError is one)."""
    connection = socket.create_connection(address, timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return connection
        connection.settimeout(min(timeout_s, handshake_s))
        return tls.client_context.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def refusal(problem: BaseException, *, uses_tls: bool) -> str:
    """Why a server that was there is of no use; "" if nothing is known but that there was no answer."""
    if not uses_tls:
        if isinstance(problem, ConnectionError) and not isinstance(problem, ConnectionRefusedError):
            return f"it ended the connection without an answer; if this port wants TLS, set {ENABLE}=true"
        return ""
    if isinstance(problem, ssl.SSLCertVerificationError):
        if problem.verify_code in HOST_MISMATCHES:
            return (
                f"its certificate is not for this host ({problem.verify_message.rstrip('.')}): zookeeper.connect must name it as the "
                "certificate does"
            )
        return f"its certificate is not valid ({problem.verify_message}): see zookeeper.ssl.truststore.location"
    if is_end(problem):
        return "it ended the handshake of TLS: is this port its secureClientPort, and are there protocols and cipher suites of both?"
    if not isinstance(problem, ssl.SSLError):
        return ""
    reason = tls_reason(problem)
    if reason in WITHOUT_TLS:
        return f"it speaks no TLS: is this port its secureClientPort? Without TLS, {ENABLE} is false"
    if ALERT in reason:
        alert = reason.rpartition(ALERT)[2]
        if alert in ABOUT_THE_OWN_CERTIFICATE:
            return f"it refuses the certificate of this side ({alert}): see {KEYSTORE}"
        return f"it ended the handshake of TLS ({alert})"
    return f"the handshake of TLS failed ({reason})"


def login_refusal(user: str, reason: str) -> str:
    """Why a login by SASL has failed."""
    return f"it refuses the login of {user!r} by DIGEST-MD5 ({reason}): see {SASL}"


def is_end(problem: BaseException) -> bool:
    """Whether the server has just ended the connection, as one that starts may do."""
    return isinstance(problem, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError)) and not isinstance(
        problem, ConnectionRefusedError
    )


HOST_MISMATCHES = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
ABOUT_THE_OWN_CERTIFICATE = frozenset(
    {
        "bad certificate",
        "certificate expired",
        "certificate required",
        "certificate revoked",
        "certificate unknown",
        "no certificate",
        "unknown ca",
        "unsupported certificate",
    }
)
"""Alerts of TLS."""
