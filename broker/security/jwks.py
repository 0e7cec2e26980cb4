"""The public keys of whoever issues tokens: fetched from a file or an address, again and again (KIP-768, `RefreshingHttpsJwks`).

Keys are fetched and read in a thread of their own, so an issuer that is slow or hangs delays nobody, and the earlier keys stay. A token
that names an unknown key makes the next fetch come earlier, but not more often than EXPEDITED_S, whoever sends how many.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from broker.security.signed_tokens import KeySet, VerificationKey, read_keys
from broker.settings.bearer import KeySource
from broker.settings.config import ConfigError
from protocol.tls import certificates_in, trust

log = logging.getLogger(__name__)

BYTES_MAX: Final = 1024 * 1024
"""Limit of a set of keys. A key has less than 2 KiB."""
SILENCE_S: Final = 5.0
"""Time limit for the issuer to send the next bytes."""
FETCH_S: Final = 10.0
"""Time limit of a fetch."""
EXPEDITED_S: Final = 10.0
"""The least time between the end of a fetch and the next one that an unknown key causes."""


class Keys:
    """The keys of one source. Call `start` before clients log in, then `run` as a task."""

    def __init__(self, source: KeySource, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.keys: Sequence[VerificationKey] = ()
        self._source = source
        self._monotonic = monotonic
        self._fetched_at = 0.0
        self._due_s = 0.0
        self._failures = 0
        self._reason = ""
        self._complaint = ""
        self._wake = asyncio.Event()
        self._is_done = threading.Event()  # whether the thread of the last fetch has its answer
        self._is_done.set()

    def missed(self) -> None:
        """A token needs a key that is not here."""
        self._wake.set()

    async def start(self) -> None:
        """The first fetch. A file must be readable (ConfigError); an address may answer later."""
        await self._fetch()
        if not self.keys and self._source.is_file:
            raise ConfigError(f"sasl.oauthbearer.jwks.endpoint.url={self._source.url}: {self._reason}")

    async def run(self) -> None:
        """Fetches the keys regularly, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._due_s - self._monotonic(), 0)):
                    await self._wake.wait()
                    await asyncio.sleep(max(self._fetched_at + EXPEDITED_S - self._monotonic(), 0))
            self._wake.clear()
            await self._fetch()

    async def _fetch(self) -> None:
        source = self._source
        try:
            keys, complaint = await self._in_a_thread()
        except (OSError, ValueError, HTTPException) as problem:
            self._failures += 1
            pause_ms = min(source.retry_ms * 2 ** min(self._failures - 1, 20), source.retry_max_ms)
            reason = str(problem) or type(problem).__name__
            if reason != self._reason:
                log.warning("the keys of issued tokens cannot be fetched from %s: %s", source.url, reason)
            self._reason = reason
        else:
            if self._failures or not self.keys:
                log.info("%d keys of issued tokens were fetched from %s", len(keys), source.url)
            if complaint and complaint != self._complaint:
                log.warning("keys of %s that cannot be used are left out: %s", source.url, complaint)
            self.keys, self._complaint = keys, complaint
            self._failures, self._reason = 0, ""
            pause_ms = source.refresh_ms
        self._fetched_at = self._monotonic()
        self._due_s = self._fetched_at + pause_ms / 1000

    async def _in_a_thread(self) -> KeySet:
        """Also reads the keys, which takes a second if there are thousands. A thread that hangs is left alone, and there is no second one
        as long as it does."""
        if not self._is_done.is_set():
            raise OSError("the fetch before still hangs")
        self._is_done = is_done = threading.Event()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[KeySet] = loop.create_future()

        def finished(keys: KeySet, problem: Exception | None) -> None:
            if not future.done():
                if problem is None:
                    future.set_result(keys)
                else:
                    future.set_exception(problem)

        def work() -> None:
            keys = KeySet((), "")
            problem = None
            try:
                keys = read_keys(fetched(self._source))
            except (OSError, ValueError, HTTPException) as error:
                problem = error
            finally:
                is_done.set()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(finished, keys, problem)

        threading.Thread(target=work, name="keys of tokens", daemon=True).start()
        async with asyncio.timeout(2 * FETCH_S):
            return await future


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An issuer's address is the one in the settings."""

    def redirect_request(self, *_: Any) -> None:
        return None


def fetched(source: KeySource) -> bytes:
    """The content of the file or address. Blocks for at most about FETCH_S. Raises OSError, ValueError, HTTPException."""
    if source.is_file:
        with Path(unquote(urlsplit(source.url).path)).open("rb") as file:
            return _limited(file.read(BYTES_MAX + 1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust(context, certificates_in(source.trusted) if source.trusted else None)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _NoRedirect()
    )
    ends = time.monotonic() + FETCH_S
    data = b""
    with opener.open(
        urllib.request.Request(source.url, headers={"Accept": "application/json"}), timeout=SILENCE_S
    ) as answer:
        while piece := answer.read1(64 * 1024):
            data = _limited(data + piece)
            if time.monotonic() > ends:
                raise TimeoutError(f"it did not answer within {FETCH_S:g} s")
    return data


def _limited(data: bytes) -> bytes:
    if len(data) > BYTES_MAX:
        raise ValueError(f"more than {BYTES_MAX} bytes")
    return data
