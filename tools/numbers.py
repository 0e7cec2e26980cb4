"""Types of options and arguments: paths, numbers, parsed as strictly as settings are (`protocol.numbers`), what a function makes of a text.

Click uses Python's `int` and `float`, which accept `1_0`, digits of other scripts, and `nan`, which passes every range check.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from protocol.numbers import decimal_number, is_plain_number, whole_number

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
DIRECTORY = click.Path(path_type=Path, file_okay=False)


class _Output(click.Path):
    """A file that a command writes in the end. Without its directory, the command does not start."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.absolute().parent.is_dir():
            self.fail(f"{path}: there is no directory {path.parent}", param, ctx)
        return path


OUTPUT = _Output(path_type=Path, dir_okay=False, writable=True)


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """`parse` raises ValueError with what the user is to read. `name`: what help shows for the value."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


class IntRange(click.IntRange):
    """A whole number, inside limits if there are any."""

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            try:
                value = whole_number(value)
            except ValueError:
                self.fail(f"{value!r} is not a valid integer.", param, ctx)
        return super().convert(value, param, ctx)


class FloatRange(click.FloatRange):
    """A finite number, inside limits if there are any."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            try:
                value = decimal_number(value)
            except ValueError:
                self.fail(f"{value!r} is not a valid number.", param, ctx)
        return super().convert(value, param, ctx)


def _sizes(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(is_plain_number(word.strip()) and int(word) > 0 for word in words):
        raise ValueError(f"{text!r}: expected whole numbers of at least 1, separated by commas, for example 1000,10000")
    return tuple(map(int, words))


SIZES = Parsed("n[,n...]", _sizes)
"""`1000,10000`: whole numbers of at least 1."""


def setting(text: str) -> tuple[str, str]:
    """(key, value) of `unclean.leader.election.enable=true`. Raises ValueError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()
