"""Options and kinds of values that several commands of `ottla demo` and `ottla replay` have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import click

from protocol.topic_names import is_valid_topic_name
from tools.numbers import PATH, FloatRange, IntRange, Parsed
from tools.points_in_time import parse_duration_ms
from tools.replay.run.masters import checked_master

MILLISECOND_NS = 1_000_000
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
POSITIVE = FloatRange(min=0, min_open=True)
TRACE = PATH
WHOLE_YEAR_DAYS = 365


def time_zone(text: str) -> ZoneInfo:
    """A time zone of the IANA database, such as Europe/Berlin. Raises ValueError."""
    try:
        return ZoneInfo(text)
    except (KeyError, OSError, ValueError):
        raise ValueError(f"{text!r} is not a time zone: expected for example Europe/Berlin") from None


DURATION = Parsed("duration", lambda text: parse_duration_ms(text) * MILLISECOND_NS)
"""A time such as `250ms`, `10s`, `2m` or `1h30m`, in nanoseconds."""
TIME_ZONE = Parsed("time zone", time_zone)


def topic_for(form: str) -> Parsed:
    """A pair such as `OLD=NEW`, of which the second part is a topic name. `form` says in messages what the parts are."""

    def pair(text: str) -> tuple[str, str]:
        first, separator, topic = text.partition("=")
        if not separator or not first or not is_valid_topic_name(topic):
            raise ValueError(f"{text!r}: expected {form}, where the second is a topic name")
        return first, topic

    return Parsed(form, pair)


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


def master_option(words: str) -> Callable[[Any], Any]:
    return click.option("--master", type=Parsed("master", checked_master), help=words)


def spark_setting(text: str) -> str:
    """`spark.executor.memory=2g`. Raises ValueError."""
    key, equals, _ = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise ValueError(f"{text!r} is not spark.KEY=VALUE")
    return text


spark_setting_option = click.option(
    "--spark-setting",
    "spark_settings",
    type=Parsed("key=value", spark_setting),
    multiple=True,
    help="Set a Spark property, such as spark.executor.memory=2g.",
)


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where an import runs: what `spark_settings_of` takes."""
    words = "Import on this Spark master: local[N] or spark://HOST:PORT, whose workers see all files at the same paths."
    with_options: Callable[..., Any] = master_option(words)(spark_setting_option(command))
    return with_options
