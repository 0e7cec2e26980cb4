"""Work on many partitions that stops now and then, so that others have their turn of the loop (NET-4). Pure."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from protocol.rpc.messages import ControlResponse

Steps = Generator[None, None, ControlResponse]
"""A control request: each `next` does a part of it, the return value is the answer."""

Result = TypeVar("Result")


def all_at_once(steps: Generator[None, None, Result]) -> Result:
    """The return value, without a stop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
