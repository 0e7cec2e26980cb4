"""Recordings over HTTP, beside the metrics: `GET /recording` is the status as JSON, `GET /recording/<file>` the bytes of a file.

A recording is too large for an answer of Kafka's protocol, and a topic for it would record itself. The metrics listener exists
already, has its own threads, and shows what a recording shows: sizes, times, client ids, topics, groups. It changes nothing: that is
done by settings (`recorder.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from broker.recording.recorder import Recorder

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

PATH = "/recording"
PIECE_SIZE = 64 * 1024


class RecordingPage:
    """A WSGI application. It is called in the threads of the metrics server."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        name = str(environ.get("PATH_INFO", "")).removeprefix(PATH).strip("/")
        if environ.get("REQUEST_METHOD") != "GET":
            return _answer(start_response, HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n")
        try:
            if not name:
                status = json.dumps(self._recorder.status()).encode()
                return _answer(start_response, HTTPStatus.OK, status, "application/json")
            path = self._recorder.path_of(name)
            if path is None:
                return _answer(start_response, HTTPStatus.NOT_FOUND, b"there is no such file\n")
            return _file(start_response, path)
        except OSError as error:
            return _answer(start_response, HTTPStatus.INTERNAL_SERVER_ERROR, f"{error.strerror}\n".encode())


def _answer(
    start_response: StartResponse, status: HTTPStatus, body: bytes, content_type: str = "text/plain"
) -> list[bytes]:
    headers = [("Content-Type", content_type), ("Content-Length", str(len(body)))]
    start_response(f"{status.value} {status.phrase}", headers)
    return [body]


def _file(start_response: StartResponse, path: str) -> Iterator[bytes]:
    """The bytes that the file has now, in pieces."""
    file = open(path, "rb")  # noqa: SIM115 - closed when it was sent
    left = file.seek(0, 2)
    file.seek(0)
    headers = [("Content-Type", "application/octet-stream"), ("Content-Length", str(left))]
    start_response(f"{HTTPStatus.OK.value} {HTTPStatus.OK.phrase}", headers)

    def pieces() -> Iterator[bytes]:
        nonlocal left
        with file:
            while left and (piece := file.read(min(PIECE_SIZE, left))):
                left -= len(piece)
                yield piece

    return pieces()
