"""Recordings over HTTP, beside the metrics: `GET /recording` is the status as JSON, `GET /recording/<file>` the bytes of a file.

A recording is too large for an answer of Kafka's protocol, and a topic for it would record itself. The metrics listener exists
already, has its own threads, and shows what a recording shows: sizes, times, client ids, topics, groups. It changes nothing: that is
done by settings (`recorder.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from broker.process.http_pages import INTERNAL_SERVER_ERROR, METHOD_NOT_ALLOWED, NOT_FOUND, Answer, brief
from broker.recording.recorder import Recorder

PATH = "/recording"
PIECE_SIZE = 64 * 1024


class RecordingPage:
    """A `Page` of the metrics server."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, method: str, path: str) -> Answer:
        name = path.removeprefix(PATH).strip("/")
        if method != "GET":
            return brief(b"only GET\n", METHOD_NOT_ALLOWED)
        try:
            if not name:
                return brief(json.dumps(self._recorder.status()).encode(), content_type="application/json")
            file = self._recorder.path_of(name)
            return brief(b"there is no such file\n", NOT_FOUND) if file is None else _file(file)
        except OSError as error:
            return brief(f"{error.strerror}\n".encode(), INTERNAL_SERVER_ERROR)


def _file(path: str) -> Answer:
    """The bytes that the file has now, in pieces."""
    file = open(path, "rb")  # noqa: SIM115 - closed when it was sent
    size = file.seek(0, 2)
    file.seek(0)

    def pieces() -> Iterator[bytes]:
        left = size
        with file:
            while left and (piece := file.read(min(PIECE_SIZE, left))):
                left -= len(piece)
                yield piece

    return Answer(pieces(), content_type="application/octet-stream", size=size)
