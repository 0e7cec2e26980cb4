"""Serves pages over HTTP/1.0, in threads, for scrapes and tools. Any client may ask with HTTP/1.1; each connection is for one request.

Python's own `http.server` would load 40 modules, and two megabytes, into each broker. Because each connection takes a thread, at most
CONNECTIONS_MAX are served at a time, with the time-out CONNECTION_TIMEOUT_S.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import StreamRequestHandler, TCPServer, ThreadingMixIn
from typing import Any, NamedTuple

CONNECTIONS_MAX = 8
"""Limit of connections that are served at a time; further ones are closed. A scrape takes milliseconds."""
CONNECTION_TIMEOUT_S = 5.0
"""How long the server waits for a client that sends nothing, or does not read."""
REQUEST_BYTES_MAX = 16 * 1024
"""Limit of a request line with its headers, which are not looked at."""

OK = "200 OK"
BAD_REQUEST = "400 Bad Request"
NOT_FOUND = "404 Not Found"
METHOD_NOT_ALLOWED = "405 Method Not Allowed"
INTERNAL_SERVER_ERROR = "500 Internal Server Error"


class Answer(NamedTuple):
    """`size`: the length of the body in bytes; None if the end of the connection ends it."""

    body: Iterable[bytes]
    status: str = OK
    content_type: str = "text/plain"
    size: int | None = None


def brief(body: bytes, status: str = OK, content_type: str = "text/plain") -> Answer:
    """An answer that is in memory."""
    return Answer((body,), status, content_type, len(body))


Page = Callable[[str, str], Answer]
"""(method, path without the query) -> the answer. It is called in a thread of the server."""


class PageServer(ThreadingMixIn, TCPServer):
    """Serves one page, which gets all paths, until `close`. Raises OSError if the address cannot be used."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, page: Page, name: str) -> None:
        """Port 0 means a free port. `self.port` is the bound port. `name`: of the thread that accepts connections."""
        self.page = page
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__((host, port), _Handler)
        self.port = int(self.socket.getsockname()[1])
        self._thread = threading.Thread(target=self.serve_forever, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that disconnected or were too slow."""


class _Handler(StreamRequestHandler):
    timeout = CONNECTION_TIMEOUT_S
    server: PageServer

    def handle(self) -> None:
        asked = self._request()
        if asked is None:
            answer = brief(b"this is no request of HTTP\n", BAD_REQUEST)
        else:
            answer = self.server.page(*asked)
        head = [f"HTTP/1.0 {answer.status}", f"Content-Type: {answer.content_type}", "Connection: close"]
        if answer.size is not None:
            head.append(f"Content-Length: {answer.size}")
        self.wfile.write("".join(f"{line}\r\n" for line in [*head, ""]).encode())
        if asked is not None and asked[0] == "HEAD":
            return
        for piece in answer.body:
            self.wfile.write(piece)

    def _request(self) -> tuple[str, str] | None:
        """Method and path; None if it is not a whole request."""
        lines: list[bytes] = []
        left = REQUEST_BYTES_MAX
        while not lines or lines[-1].strip():
            line = self.rfile.readline(left)
            if not line.endswith(b"\n"):
                return None  # it is too long, or the client sends no more
            lines.append(line)
            left -= len(line)
        words = lines[0].decode("latin-1").split()
        return (words[0], words[1].partition("?")[0]) if len(words) > 1 else None
