"""TLS in parts: nothing is lost, and messages without content end the connection (BAD-34)."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.bounded_tls import LARGE_PART, RECORD_MAX, SMALL_PART, WITHOUT_CONTENT_MAX, BoundedTls
from tests.support.certificates import Certificates

SECRET = "CLIENT_TRAFFIC_SECRET_0"
"""OpenSSL's word in a key log for the secret with which the client encrypts content."""
KEY_UPDATE = b"\x18\x00\x00\x01\x00"
HANDSHAKE, APPLICATION_DATA = b"\x16", b"\x17"
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class Pair:
    """A client and a server in memory, whose handshake is done."""

    def __init__(self, certificate: Path, version: ssl.TLSVersion, kind: type[ssl.SSLObject] = BoundedTls) -> None:
        self.key_log = certificate.with_name("keys")
        self.key_log.unlink(missing_ok=True)
        serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        serving.load_cert_chain(certificate)
        serving.sslobject_class = kind
        asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
        asking.keylog_filename = str(self.key_log)
        asking.minimum_version = asking.maximum_version = version
        self.to_server, self.to_client, self._from_client = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = serving.wrap_bio(self.to_server, self.to_client, server_side=True)
        self.client = asking.wrap_bio(self.to_client, self._from_client)
        ended = set()
        while len(ended) < 2:
            for side in (self.client, self.server):
                try:
                    side.do_handshake()
                    ended.add(side)
                except ssl.SSLWantReadError:
                    pass
                self.to_server.write(self._from_client.read())

    def encrypted(self, content: bytes) -> bytes:
        """The records in which the client sends it."""
        self.client.write(content)
        return self._from_client.read()

    def read(self, buffer_size: int, *, looks_first: bool = True) -> bytes:
        """All that is there, as the loops read it: uvloop looks whether something is pending, asyncio reads until OpenSSL wants more."""
        content, buffer = bytearray(), bytearray(buffer_size)
        try:
            while not looks_first or self.to_server.pending + self.server.pending():
                content += buffer[: self.server.read(buffer_size, buffer)]
        except ssl.SSLWantReadError:
            pass
        return bytes(content)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Certificates(tmp_path_factory.mktemp("tls")).broker


@pytest.mark.parametrize("version", VERSIONS)
@given(
    sizes=st.lists(st.integers(22, 200_000) | st.integers(22, 200), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 300_000) | st.integers(1, 50), min_size=1, max_size=30),
    buffer_size=st.sampled_from([512, 65_536, 1_000_000]),
    looks_first=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_content_arrives_however_it_is_cut(
    certificate: Path, version: ssl.TLSVersion, sizes: list[int], cuts: list[int], buffer_size: int, looks_first: bool
) -> None:
    pair = Pair(certificate, version)
    contents = [bytes([number]) * size for number, size in enumerate(sizes)]
    encrypted = b"".join(map(pair.encrypted, contents))
    found = bytearray()
    for cut in [*cuts, len(encrypted)]:
        pair.to_server.write(encrypted[:cut])
        encrypted = encrypted[cut:]
        found += pair.read(buffer_size, looks_first=looks_first)
    assert found == b"".join(contents)


def test_small_requests_do_not_add_up(certificate: Path) -> None:
    pair = Pair(certificate, ssl.TLSVersion.TLSv1_3)
    for _ in range(3000):
        pair.to_server.write(pair.encrypted(bytes(30)))
        assert len(pair.read(65_536)) == 30


@pytest.mark.parametrize(("before", "part"), [(0, SMALL_PART), (100_000, LARGE_PART)])
def test_keys_that_change_without_end_end_the_connection(certificate: Path, before: int, part: int) -> None:
    """OpenSSL itself takes all of them, in one call."""
    for kind in (ssl.SSLObject, BoundedTls):
        pair = Pair(certificate, ssl.TLSVersion.TLSv1_3, kind)
        updates = key_updates(pair, pair.encrypted(bytes(before)) if before else b"")
        flood = b"".join(next(updates) for _ in range(5000))
        assert len(pair.read(1_000_000)) == before
        pair.to_server.write(flood)
        if kind is ssl.SSLObject:
            assert pair.read(65_536) == b""
            continue
        with pytest.raises(ssl.SSLError, match="too many messages without content"):
            pair.read(65_536)
        assert len(flood) - pair.to_server.pending <= WITHOUT_CONTENT_MAX + RECORD_MAX + 2 * part


def test_keys_may_change_now_and_then(certificate: Path) -> None:
    pair = Pair(certificate, ssl.TLSVersion.TLSv1_3)
    updates = key_updates(pair, b"")
    pair.to_server.write(b"".join(next(updates) for _ in range(100)))
    assert pair.read(65_536) == b""


def key_updates(pair: Pair, sent: bytes) -> Iterator[bytes]:
    """Records of the client after those in `sent`, each of which changes its key (RFC 8446, 4.6.3 and 7.2)."""
    pair.to_server.write(sent)
    secret = next(
        bytes.fromhex(line.split()[2]) for line in pair.key_log.read_text().splitlines() if line.startswith(SECRET)
    )
    number, at = 0, 0
    while at < len(sent):
        at += 5 + int.from_bytes(sent[at + 3 : at + 5], "big")
        number += 1
    while True:
        head = APPLICATION_DATA + b"\x03\x03" + (len(KEY_UPDATE) + 1 + 16).to_bytes(2, "big")
        start = int.from_bytes(_expanded(secret, b"iv", 12), "big")
        nonce = (start ^ number).to_bytes(12, "big")
        yield head + AESGCM(_expanded(secret, b"key", 32)).encrypt(nonce, KEY_UPDATE + HANDSHAKE, head)
        secret, number = _expanded(secret, b"traffic upd", 48), 0


def _expanded(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label, for TLS_AES_256_GCM_SHA384."""
    name = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\x00"
    return HKDFExpand(SHA384(), size, info).derive(secret)
