"""Numbers as options and arguments: click's types, but strict as the settings are (`protocol.numbers`).

Click hands the text to Python's `int` and `float`, which take `1_0`, digits of other scripts, and `nan`, which is inside every range.
"""

from __future__ import annotations

from typing import Any

import click

from protocol.numbers import decimal_number, whole_number


class IntRange(click.IntRange):
    """A whole number, inside limits if there are any."""

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
