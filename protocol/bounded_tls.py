"""TLS for clients that nobody trusts yet: what comes encrypted must have content (BAD-34).

A client of TLS 1.3 may change its keys as often as it likes (KeyUpdate). OpenSSL obeys, and reads on until it finds content: with 256 KiB
of such messages at hand it computes for a tenth of a second and more. So OpenSSL is given one record at a time: if it finds no content,
there was none. Each record costs the client something, its content and time pay for that, and a connection that owes too much ends.

    the socket -> the loop's MemoryBIO -> BoundedTls: a record at a time -> OpenSSL -> content
"""

from __future__ import annotations

import ssl
import time
from typing import Any, Final, Self

HEAD: Final = 5
"""Bytes of a record before the encrypted ones. The last two are the number of those."""
COST: Final = 32
"""Bytes of content for which a record is free. Smaller ones are not, nor is each of a client that writes byte by byte."""
COST_WITHOUT_CONTENT: Final = 1024
"""The same for a record without content. A new key costs as much time as that of some KiB."""
OWED_MAX: Final = 64 * 1024
"""More than that ends the connection: 64 new keys at once, or 2,000 single bytes. The first time an old connection has twice as much."""
FORGIVEN_PER_S: Final = 32 * 1024


class BoundedTls(ssl.SSLObject):
    """What an `ssl.SSLContext` makes of two MemoryBIOs with this class as its `sslobject_class`."""

    _sslobj: Any  # that of SSLObject
    _incoming: ssl.MemoryBIO  # the loop's
    _given: ssl.MemoryBIO  # what OpenSSL has
    _head: bytes  # the incomplete head of the next record
    _left: int  # bytes of the record that OpenSSL has a part of
    _owed: int
    _forgiven_at: float

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *others: Any, **options: Any) -> Self:
        given = ssl.MemoryBIO()
        made: Self = super()._create(given, outgoing, *others, **options)  # type: ignore[misc]
        made._incoming, made._given = incoming, given
        made._head, made._left, made._owed, made._forgiven_at = b"", 0, 0, time.monotonic()
        return made

    def do_handshake(self) -> None:
        """As of SSLObject. The records of handshakes cost nothing: OpenSSL limits them."""
        while True:
            self._give()
            try:
                return super().do_handshake()
            except ssl.SSLWantReadError:
                if not self._incoming.pending:
                    raise

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        """As of SSLObject. Raises ssl.SSLError, too, if the client owes too much."""
        openssl = self._sslobj  # the way of SSLObject, without a call per record
        while True:
            is_whole = self._give()
            try:
                found: Any = openssl.read(size) if buffer is None else openssl.read(size, buffer)
            except ssl.SSLWantReadError:
                if is_whole:
                    self._owes(COST_WITHOUT_CONTENT)
                if not self._incoming.pending:
                    raise
            else:
                more = -len(found) if buffer is None else -found
                if is_whole:
                    more += COST
                if more > 0 or self._owed:
                    self._owes(more)
                return found

    def pending(self) -> int:
        """As of SSLObject, and what OpenSSL has not decrypted yet: the loop reads on as long as something is pending."""
        return super().pending() + self._given.pending

    def unwrap(self) -> None:
        """As of SSLObject. Raises ssl.SSLError, too, if the client owes too much."""
        while True:
            is_whole = self._give()
            try:
                super().unwrap()
                return
            except ssl.SSLWantReadError:
                if is_whole:
                    self._owes(COST_WITHOUT_CONTENT)
                if not self._incoming.pending:
                    raise

    def _give(self) -> bool:
        """Gives OpenSSL the next record, or what has come of it, unless it has something at hand. Returns whether the record is whole."""
        given, incoming = self._given, self._incoming
        if not incoming.pending or given.pending or self._sslobj.pending():
            return False
        left = self._left
        if not left:
            head = incoming.read(HEAD - len(self._head))
            if len(head) < HEAD:
                self._head = head = self._head + head
                if len(head) < HEAD:
                    return False
                self._head = b""
            given.write(head)
            left = head[3] << 8 | head[4]
        self._left = left = left - given.write(incoming.read(left))
        return not left

    def _owes(self, more: int) -> None:
        self._owed = owed = max(self._owed + more, 0)
        if owed > OWED_MAX:
            now = time.monotonic()
            self._owed = owed = max(owed - int((now - self._forgiven_at) * FORGIVEN_PER_S), 0)
            self._forgiven_at = now
            if owed > OWED_MAX:
                raise ssl.SSLError(ssl.SSL_ERROR_SSL, "too many messages without content")
