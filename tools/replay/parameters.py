"""Options and kinds of values that several commands of `ottla demo` and `ottla replay` have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from protocol.topic_names import is_valid_topic_name
from tools.numbers import FloatRange, IntRange
from tools.points_in_time import NoTime, parse_duration_ms

MILLISECOND_NS = 1_000_000
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
POSITIVE = FloatRange(min=0, min_open=True)
TRACE = click.Path(path_type=Path)
WHOLE_YEAR_DAYS = 365


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A time such as `250ms`, `10s`, `2m` or `1h30m`, in nanoseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_duration_ms(value) * MILLISECOND_NS
        except NoTime as problem:
            self.fail(str(problem), param, ctx)


class TimeZone(click.ParamType):  # type: ignore[type-arg]
    """A time zone of the IANA database, such as Europe/Berlin."""

    name = "time zone"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ZoneInfo:
        if isinstance(value, ZoneInfo):
            return value
        try:
            return ZoneInfo(value)
        except (KeyError, OSError, ValueError):
            self.fail(f"{value!r} is not a time zone: expected for example Europe/Berlin", param, ctx)


class TopicFor(click.ParamType):  # type: ignore[type-arg]
    """A pair such as `OLD=NEW`, of which the second part is a topic name. `form` says in messages what the parts are."""

    def __init__(self, form: str) -> None:
        self.name = form

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        first, separator, topic = value.partition("=")
        if not separator or not first or not is_valid_topic_name(topic):
            self.fail(f"{value!r}: expected {self.name}, where the second is a topic name", param, ctx)
        return first, topic


def out_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--out", type=TRACE, required=True, metavar="TRACE", help="The trace to write.")(command)


def flight_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose a part of the year 2013."""
    for option in (
        click.option("--year", is_flag=True, help="Use the whole year 2013, 655,867 events."),
        click.option("--days", type=IntRange(1, WHOLE_YEAR_DAYS), default=7, show_default=True, help="Number of days."),
        click.option(
            "--start-day",
            type=click.DateTime(formats=["%Y-%m-%d"]),
            default="2013-01-01",
            show_default=True,
            help="The first day.",
        ),
    ):
        command = option(command)
    return command
