"""New certificates for the brokers and users of a secured cluster that runs."""

from __future__ import annotations

import socket
import ssl
import time

from protocol.tls import certificates_in
from protocol.types import Address
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.processes import ClusterError

TAKEN_TIMEOUT_S = 20.0
"""A broker looks at its certificate every five seconds."""
POLL_S = 0.1
CONNECT_TIMEOUT_S = 5.0


def renew(local: LocalCluster, of: int | str, *, is_expired: bool = False) -> None:
    """Gives a broker (its id) or a user another key and certificate, or one that has expired.

    Returns when the broker uses it for new connections, if it runs. Raises ClusterError.
    """
    from tools.cluster.secured.authority import past_validity

    validity = past_validity() if is_expired else None
    secured = local.secured
    if secured is None:
        raise ClusterError(f"the cluster in {local.directory} is not secured: it was made without `--secure`")
    try:
        if isinstance(of, str):
            local.access(of)  # says who the users are
            secured.sign_user(of, validity)
            return
        host, _, port = local.address(of).rpartition(":")
        secured.sign_broker(of, [host.strip("[]")], validity)
    except OSError as problem:
        raise ClusterError(f"the certificate of {of} cannot be replaced: {problem}") from None
    if local.pid(of) is None or local.is_paused(of):
        return
    (new,) = certificates_in(secured.keystore(of).read_text())
    deadline = time.monotonic() + TAKEN_TIMEOUT_S
    while ssl.PEM_cert_to_DER_cert(new) != _shown_at((host.strip("[]"), int(port))):
        if time.monotonic() > deadline:
            raise ClusterError(f"broker {of} does not use its new certificate, {TAKEN_TIMEOUT_S:g} s long")
        time.sleep(POLL_S)


def _shown_at(address: Address) -> bytes:
    """The certificate that a server shows, valid or not; b"" if there is no handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection(address, CONNECT_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=address[0]) as wire,
        ):
            return wire.getpeercert(binary_form=True) or b""
    except OSError:
        return b""
