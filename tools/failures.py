"""Errors of requests to a cluster, in one line for a person, and how a command ends with an expected error."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import ParamSpec

import click

from protocol.plain_text import escaped
from tools.terminal import echo

INTERRUPTED = 130

P = ParamSpec("P")


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


def said_of(error: OSError) -> str:
    """An error of a file, or of the system, in one line."""
    file = error.filename2 or error.filename
    return str(error) if file is None else f"{os.fsdecode(file)}: {error.strerror}"


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


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises ClickException with one line for an expected error, and if a module is missing that only a replay needs."""
    try:
        yield
    except ModuleNotFoundError as problem:
        raise click.ClickException(
            f"the module {problem.name} is missing; install what a replay needs: pip install 'ottla[replay]'"
        ) from None
    except ExpectedError as problem:
        raise click.ClickException(str(problem)) from None
    except OSError as problem:
        raise click.ClickException(said_of(problem)) from None


def guarded(command: Callable[P, int]) -> Callable[P, None]:
    """The command exits with what it returns, or with 128 + the signal's number after an interrupt. Errors are `explained`."""

    @functools.wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        from tools.interrupts import Interrupted, interruptible

        try:
            with interruptible(), explained():
                code = command(*arguments, **options)
        except Interrupted as interrupt:
            click.echo(f"\n{interrupt}: everything that was started has been stopped.", err=True)
            code = interrupt.exit_code
        sys.exit(code)

    return run
