"""Why a broker cannot listen: in one line, which names the setting to change."""

from __future__ import annotations

import errno
import socket

import pytest

from broker.main import CannotListen, Endpoint, _port_errors

TAKEN = OSError(errno.EADDRINUSE, "error while attempting to bind on address ('h', 1): address already in use")
NOT_HERE = OSError(
    errno.EADDRNOTAVAIL, "error while attempting to bind on address ('h', 1): cannot assign requested address"
)
NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.parametrize(
    ("listener", "error", "says"),
    [
        (
            "PLAINTEXT",
            TAKEN,
            "port 1 is in use: PLAINTEXT cannot listen at h:1; stop the program there or change listeners",
        ),
        ("metrics.listener", TAKEN, "port 1 is in use: metrics.listener .* or change metrics.listener"),
        ("PLAINTEXT", NOT_HERE, "PLAINTEXT cannot listen at h:1: Cannot assign requested address"),
        ("PLAINTEXT", NO_NAME, "PLAINTEXT cannot listen at h:1: Name or service not known"),
    ],
)
def test_an_address_where_a_broker_cannot_listen(listener: str, error: OSError, says: str) -> None:
    with pytest.raises(CannotListen, match=f"^{says}$"), _port_errors(Endpoint(listener, "h", 1)):
        raise error
