"""Number types for options and arguments: click's types, parsed as strictly as settings are (`protocol.numbers`).

Click uses Python's `int` and `float`, which accept `1_0`, digits of other scripts, and `nan`, which passes every range check.
"""

from __future__ import annotations

from typing import Any

import click

from protocol.numbers import decimal_number, is_plain_number, whole_number


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


class Sizes(click.ParamType):  # type: ignore[type-arg]
    """Parses `1000,10000`: whole numbers of at least 1."""

    name = "n[,n...]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        words = str(value).split(",")
        if not all(is_plain_number(word.strip()) and int(word) > 0 for word in words):
            self.fail(
                f"{value!r}: expected whole numbers of at least 1, separated by commas, for example 1000,10000",
                param,
                ctx,
            )
        return tuple(map(int, words))
