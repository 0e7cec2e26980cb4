"""Keys and certificates in texts that somebody else has chosen: what is found, and that no text keeps a broker's loop waiting."""

from __future__ import annotations

import ssl
import time
from typing import Any

import pytest

from protocol.tls import private_key_in, trust

BEGIN, END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
SOON_S = 5.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        (BEGIN, ""),
        (f"{END}{BEGIN}", ""),
        (f"some text\n{BEGIN}YWJj{END}", f"{BEGIN}\nYWJj\n{END}\n"),
        (f"{BEGIN}\nYW\nJj\n{END}{BEGIN}ZGVm{END}", f"{BEGIN}\nYWJj\n{END}\n"),
        (
            f"-----BEGIN RSA PRIVATE KEY-----YWJj{END}{BEGIN}ZGVm{END}",
            f"{BEGIN}\nZGVm\n{END}\n",
        ),
        (
            "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nYWJj\n-----END EC PRIVATE KEY-----",
            "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nYWJj\n-----END EC PRIVATE KEY-----\n",
        ),
    ],
)
def test_the_first_private_key_of_a_text(text: str, expected: str) -> None:
    assert private_key_in(text) == expected


@pytest.mark.parametrize("text", [BEGIN * 8_000, (BEGIN + "-----BEGIN A PRIVATE KEY-----") * 4_000 + " END"])
def test_a_text_with_many_beginnings_takes_no_longer_than_others(text: str) -> None:
    """Python holds its lock while it searches, so a thread would not help."""
    before = time.monotonic()
    assert private_key_in(text) == ""
    assert time.monotonic() - before < SOON_S


def test_the_loop_may_run_after_each_trusted_certificate() -> None:
    """OpenSSL takes a millisecond for each, and Python holds its lock during a call."""
    pytest.importorskip("cryptography")
    from tools.cluster.secured.authority import Authority

    class Counting(ssl.SSLContext):
        calls = 0

        def load_verify_locations(self, *given: Any, **named: Any) -> None:
            self.calls += 1
            super().load_verify_locations(*given, **named)

    certificates = [Authority.new(name).certificate for name in ("one", "two", "three")]
    context = Counting(ssl.PROTOCOL_TLS_SERVER)
    trust(context, [*certificates, certificates[0]])
    assert context.calls == 4
    assert len(context.get_ca_certs()) == 3
