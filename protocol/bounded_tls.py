"""TLS for clients that nobody trusts yet: what comes encrypted must have content (BAD-34).

A client of TLS 1.3 may change its keys as often as it likes (KeyUpdate). OpenSSL obeys, and reads on until it finds content: with 256 KiB
of such messages at hand it computes for a tenth of a second. So OpenSSL is given little at a time, and a connection ends when it sends too
much besides content.

    the socket -> the loop's MemoryBIO -> BoundedTls: a part at a time -> OpenSSL -> content
"""

from __future__ import annotations

import ssl
from typing import Any, Final, Self

RECORD_MAX: Final = 5 + 16 * 1024 + 256
"""Bytes of the largest encrypted record (RFC 8446)."""
SMALL_PART: Final = 2 * 1024
"""Most requests fit in it."""
LARGE_PART: Final = RECORD_MAX
"""For a client whose last record had more content than a small part."""
WITHOUT_CONTENT_MAX: Final = 4 * 1024
"""Limit of the encrypted bytes beyond twice the content. A record has 22 bytes besides its content, and a request is larger than that."""


class BoundedTls(ssl.SSLObject):
    """What an `ssl.SSLContext` makes of two MemoryBIOs with this class as its `sslobject_class`."""

    _incoming: ssl.MemoryBIO  # the loop's
    _given: ssl.MemoryBIO  # what OpenSSL has
    _part: int
    _without_content: int

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *others: Any, **options: Any) -> Self:
        given = ssl.MemoryBIO()
        made: Self = super()._create(given, outgoing, *others, **options)  # type: ignore[misc]
        made._incoming, made._given, made._part, made._without_content = incoming, given, SMALL_PART, 0
        return made

    def do_handshake(self) -> None:
        """As of SSLObject. The bytes of handshakes do not count: OpenSSL limits them."""
        while True:
            self._give()
            try:
                return super().do_handshake()
            except ssl.SSLWantReadError:
                if not self._incoming.pending:
                    raise

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        """As of SSLObject. Raises ssl.SSLError, too, if the client sends too much besides content."""
        given = self._given
        while True:
            self._give()
            before = given.pending
            try:
                found: Any = super().read(size, buffer)
            except ssl.SSLWantReadError:
                self._count(before - given.pending)
                if not self._incoming.pending:
                    raise
            else:
                content = found if buffer is not None else len(found)
                self._part = LARGE_PART if content > SMALL_PART else SMALL_PART
                self._count(before - given.pending - 2 * content)
                return found

    def _count(self, excess: int) -> None:
        """`excess`: encrypted bytes beyond twice the content."""
        self._without_content += excess
        if self._without_content < 0:
            self._without_content = 0
        elif self._without_content > WITHOUT_CONTENT_MAX + RECORD_MAX:  # OpenSSL may hold the start of a record
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, "too many messages without content")

    def pending(self) -> int:
        """As of SSLObject, and what OpenSSL has not decrypted yet: the loop reads on as long as something is pending."""
        return super().pending() + self._given.pending

    def unwrap(self) -> None:
        """As of SSLObject."""
        while True:
            self._give()
            try:
                super().unwrap()
                return
            except ssl.SSLWantReadError:
                if not self._incoming.pending:
                    raise

    def _give(self) -> None:
        """Gives OpenSSL the next part, unless it has as much at hand. It wants to read only when it has used up all of it."""
        if self._given.pending < self._part and self._incoming.pending:
            self._given.write(self._incoming.read(self._part))
