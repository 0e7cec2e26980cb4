"""TLS in parts: nothing is lost, and messages without content end the connection (BAD-34)."""

from __future__ import annotations

import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import bounded_tls
from protocol.bounded_tls import COST, COST_WITHOUT_CONTENT, FORGIVEN_PER_S, OWED_MAX, BoundedTls
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
        if content:
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its one element is the time."""
    now = [1000.0]
    monkeypatch.setattr(bounded_tls, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


UPDATES_MAX = OWED_MAX // COST_WITHOUT_CONTENT
"""New keys at once."""


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("ends", ["reads", "is ending"])
def test_keys_that_change_without_end_end_the_connection(certificate: Path, ends: str) -> None:
    """OpenSSL itself takes all of them, in one call. asyncio reads no more while it waits for the client's close_notify."""
    for kind in (ssl.SSLObject, BoundedTls):
        pair = Pair(certificate, ssl.TLSVersion.TLSv1_3, kind)
        crafted = Crafted(pair)
        flood = [crafted.update() for _ in range(1000)]
        pair.read(65_536)
        receive = partial(pair.read, 65_536)
        if ends == "is ending":
            with pytest.raises(ssl.SSLWantReadError):
                pair.server.unwrap()
            receive = pair.server.unwrap  # type: ignore[assignment]
        pair.to_server.write(b"".join(flood))
        if kind is BoundedTls:
            with pytest.raises(ssl.SSLError, match="too many messages without content"):
                receive()
            assert len(b"".join(flood)) - pair.to_server.pending == (UPDATES_MAX + 1) * len(flood[0])
        else:
            with suppress(ssl.SSLWantReadError):
                receive()
            assert pair.to_server.pending == 0


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("buffer_size", [777, 65_536])
def test_content_pays_for_few_keys_only(certificate: Path, buffer_size: int) -> None:
    for updates in (15, 100):
        pair = Pair(certificate, ssl.TLSVersion.TLSv1_3)
        crafted = Crafted(pair)
        ended = False
        for _ in range(20):
            pair.to_server.write(b"".join(crafted.update() for _ in range(updates)) + crafted.content(bytes(16_384)))
            try:
                assert len(pair.read(buffer_size)) == 16_384
            except ssl.SSLError:
                ended = True
                break
        assert ended == (updates == 100)


def test_keys_may_change_now_and_then(certificate: Path, clock: list[float]) -> None:
    pair = Pair(certificate, ssl.TLSVersion.TLSv1_3)
    crafted = Crafted(pair)
    for _ in range(10):
        pair.to_server.write(b"".join(crafted.update() for _ in range(UPDATES_MAX)))
        assert pair.read(65_536) == b""
        clock[0] += OWED_MAX / FORGIVEN_PER_S


@pytest.mark.usefixtures("clock")
def test_padding_costs_nothing(certificate: Path) -> None:
    pair = Pair(certificate, ssl.TLSVersion.TLSv1_3)
    crafted = Crafted(pair)
    for _ in range(100):
        pair.to_server.write(crafted.content(bytes(60), padding=16_000))
        assert len(pair.read(65_536)) == 60


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_may_write_byte_by_byte_for_a_while(certificate: Path, version: ssl.TLSVersion) -> None:
    pair = Pair(certificate, version)
    for _ in range(OWED_MAX // (COST - 1)):
        pair.to_server.write(pair.encrypted(b"x"))
        assert pair.read(65_536) == b"x"
    pair.to_server.write(b"".join(pair.encrypted(b"x") for _ in range(1000)))
    with pytest.raises(ssl.SSLError, match="too many messages without content"):
        pair.read(65_536)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_read_stays_with_the_loop(certificate: Path, version: ssl.TLSVersion) -> None:
    """The loop knows what has come, and stops to read from the socket when it is much."""
    pair = Pair(certificate, version)
    records = [pair.encrypted(bytes([number]) * 100) for number in range(20)]
    pair.to_server.write(b"".join(records))
    for number in range(20):
        assert pair.server.read(100) == bytes([number]) * 100
        assert pair.to_server.pending == sum(map(len, records[number + 1 :]))
        assert pair.server.pending() == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_the_end_right_behind_content(certificate: Path, version: ssl.TLSVersion) -> None:
    pair = Pair(certificate, version)
    content = pair.encrypted(bytes(50_000))
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.to_server.write(content + pair.encrypted(b""))
    assert len(pair.read(65_536)) == 50_000
    assert pair.server.read(100) == b""
    pair.server.unwrap()


class Crafted:
    """A client of TLS 1.3 from its first record with content on, by RFC 8446: it pads, and changes its key (4.6.3, 5.4, 7.2)."""

    def __init__(self, pair: Pair) -> None:
        lines = pair.key_log.read_text().splitlines()
        self._secret = next(bytes.fromhex(line.split()[2]) for line in lines if line.startswith(SECRET))
        self._number = 0

    def content(self, content: bytes, padding: int = 0) -> bytes:
        return self._record(content + APPLICATION_DATA + bytes(padding))

    def update(self) -> bytes:
        record = self._record(KEY_UPDATE + HANDSHAKE)
        self._secret, self._number = _expanded(self._secret, b"traffic upd", 48), 0
        return record

    def _record(self, inner: bytes) -> bytes:
        head = APPLICATION_DATA + b"\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
        start = int.from_bytes(_expanded(self._secret, b"iv", 12), "big")
        nonce = (start ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + AESGCM(_expanded(self._secret, b"key", 32)).encrypt(nonce, inner, head)


def _expanded(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label, for TLS_AES_256_GCM_SHA384."""
    name = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\x00"
    return HKDFExpand(SHA384(), size, info).derive(secret)
