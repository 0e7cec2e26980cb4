"""Where a trace or the results of a replay are: a path of this machine, or a URI that Spark's file systems know."""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

import click

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

Place = Path | str
"""A str is a URI, such as `hdfs://...`, `s3a://...`, or `file:///...` for a disk that all executors have."""


class PlaceType(click.Path):
    """A path or a URI."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value.rstrip("/") if is_uri(value) else super().convert(value, param, ctx)


PLACE = PlaceType(path_type=Path)
PLACE_DIRECTORY = PlaceType(path_type=Path, file_okay=False)


def is_uri(place: object) -> bool:
    return isinstance(place, str) and URI.match(place) is not None


def inside(place: Place, name: str) -> Place:
    return f"{place}/{name}" if isinstance(place, str) else place / name


def named(place: Place) -> str:
    """The place for `plan.json`: an absolute path, or a URI."""
    return place if isinstance(place, str) else str(place.absolute())


def uri_of(place: Place) -> str:
    """The place for Spark, whose default file system may be another one than this machine's."""
    return str(place) if is_uri(place) else f"file://{place}"


def whole(place: Place) -> PurePath:
    """Tells whether two places are in one another. The host of `hdfs` does not count: it may be named in several ways."""
    if not isinstance(place, str):
        return place.resolve()
    uri = urlsplit(place)
    if uri.scheme == "file":
        return Path("/", uri.path).resolve()
    return PurePath("//", uri.scheme, "" if uri.scheme == "hdfs" else uri.netloc, uri.path.lstrip("/"))
