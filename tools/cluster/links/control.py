"""Sends the rules of links to their process: JSON lines over a Unix socket in the run directory, one answer for each line.

    {"add": [rule, ...]}    {"remove": [id, ...]}    {"remove": null} removes all    {"show": true}

Each answer is `{"rules": [...], "connections": n}` after the change, or `{"error": text}`, in which case nothing was changed.
`control_server.py` answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.cluster.links.rules import Rule

LINE_MAX = 1024 * 1024
ANSWER_TIMEOUT_S = 5.0


class NoLinks(Exception):
    """The links cannot be told anything; the message says why."""


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for the socket that fits into a socket's address, which has 108 bytes, however deep the directory is."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}" if len(os.fsencode(path)) > 100 else str(path)
    finally:
        os.close(directory)


class LinksControl:
    """The client's side. The methods raise NoLinks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, rules: Sequence[Rule]) -> None:
        self._ask({"add": [rule.to_json() for rule in rules]})

    def remove(self, ids: Sequence[str] | None) -> None:
        """None: all rules."""
        self._ask({"remove": None if ids is None else list(ids)})

    def rules(self) -> list[Rule]:
        return [Rule.from_json(row) for row in self._ask({"show": True})["rules"]]

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with short_path(self._path) as short, socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ANSWER_TIMEOUT_S)
                connection.connect(short)
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as lines:
                    answered: dict[str, Any] = json.loads(lines.readline(LINE_MAX))
        except (OSError, ValueError) as problem:
            raise NoLinks(f"the links at {self._path} do not answer: {problem}") from None
        if "error" in answered:
            raise NoLinks(f"the links refuse that: {answered['error']}")
        return answered
