"""Stores of type PKCS12 are opened without standing in the way of the process's other threads."""

from __future__ import annotations

import asyncio
import time

import pytest

from protocol import pkcs12_reader
from protocol.tls import TlsError, read_pkcs12

pytest.importorskip("cryptography")

PASSWORD = "opens-the-store"
ITERATIONS = 300_000
LOOK_S = 0.001


def store(iterations: int) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import pkcs12

    encryption = (
        serialization.PrivateFormat.PKCS12.encryption_builder()
        .kdf_rounds(iterations)
        .key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC)
        .hmac_hash(hashes.SHA256())
        .build(PASSWORD.encode())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    return pkcs12.serialize_key_and_certificates(b"x", key, None, None, encryption)


async def test_the_loop_runs_while_a_store_with_many_iterations_is_opened() -> None:
    """cryptography holds Python's lock meanwhile."""
    data = await asyncio.to_thread(store, ITERATIONS)
    begun = time.monotonic()
    opening = asyncio.create_task(asyncio.to_thread(read_pkcs12, data, PASSWORD))
    longest, before = 0.0, begun
    while not opening.done():
        await asyncio.sleep(LOOK_S)
        longest, before = max(longest, time.monotonic() - before), time.monotonic()
    with pytest.raises(TlsError, match="it has a private key without a certificate"):
        opening.result()
    assert longest < (before - begun) / 2


def test_a_store_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pkcs12_reader, "OPENING_S_MAX", 0.001)
    with pytest.raises(TlsError, match=r"it takes more than 0\.001 s; make it with fewer iterations"):
        read_pkcs12(store(1), PASSWORD)
