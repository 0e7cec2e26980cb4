"""Errors of requests to a cluster, in one line for a person, and how a command ends with an expected error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import click

from protocol.plain_text import escaped
from tools.terminal import echo

INTERRUPTED = 130

Result = TypeVar("Result")


class ExpectedError(Exception):
    """An error that a person can mend. Its text is one line for them: what was wrong, where, and what to do."""


class AdminError(ExpectedError):
    """A failed request: one line that says what went wrong and what to do."""


class NoClusterNamed(AdminError):
    """No option, no variable and no run directory names a cluster."""


class TopicExists(AdminError):
    """The topic to create exists."""


class NotServed(AdminError):
    """The cluster does not support the API that the request needs."""


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Prints an expected error as one line on stderr and exits with 1; with 130 after Ctrl-C."""
    try:
        yield
    except ExpectedError as problem:
        raise click.ClickException(escaped(str(problem))) from None
    except KeyboardInterrupt:
        echo("Interrupted.", err=True)
        sys.exit(INTERRUPTED)


def guarded(work: Callable[[], int]) -> None:
    """Runs `work` and exits with its code, or with 128 + the signal's number after an interrupt. Raises ClickException."""
    from tools.interrupts import Interrupted, interruptible

    try:
        with interruptible():
            code = explained(work)
    except Interrupted as interrupt:
        click.echo(f"\n{interrupt}: everything that was started has been stopped.", err=True)
        code = interrupt.exit_code
    sys.exit(code)


def explained(work: Callable[[], Result]) -> Result:
    """Runs `work`. Raises ClickException with one line for an expected error."""
    try:
        return work()
    except ModuleNotFoundError as problem:
        raise click.ClickException(
            f"the module {problem.name} is missing; install what a replay needs: pip install 'ottla[replay]'"
        ) from None
    except (ExpectedError, OSError) as problem:
        raise click.ClickException(str(problem)) from None
