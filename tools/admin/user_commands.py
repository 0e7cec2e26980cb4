"""`ottla user`: users who log in by SCRAM, of any Kafka (KIP-554). A password is never an argument, which others could see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from protocol.scram import HASHES, ITERATIONS_MIN
from tools.admin.connection import connect, connection_options, print_json
from tools.admin.naming import Where
from tools.failures import errors_in_one_line
from tools.numbers import IntRange
from tools.terminal import echo

Command = TypeVar("Command", bound=Callable[..., None])
ITERATIONS_MAX = 16_384
"""Kafka's maximum."""


def mechanism_option(default: str | None) -> Callable[[Command], Command]:
    """The command gets it as `mechanism`."""
    says = "how the user logs in" if default else "only the password for this  [default: all]"
    return click.option(
        "--mechanism",
        type=click.Choice([*HASHES], case_sensitive=False),
        default=default,
        show_default=True,
        help=says,
    )


def password_options(command: Command) -> Command:
    """The command gets the arguments of `_set_password`."""
    options = (
        mechanism_option("SCRAM-SHA-512"),
        click.option(
            "--iterations",
            type=IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
            default=ITERATIONS_MIN,
            show_default=True,
            help="how long a guess of the password takes",
        ),
        click.option(
            "--password-file",
            type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
            help="the password is its first line; - is standard input  [default: asked for]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def user() -> None:
    """Create, alter, delete and list users with a password (docs/SECURITY.md)."""


@user.command("create")
@click.argument("name")
@password_options
@connection_options
def create_user(
    where: Where, output: str, name: str, mechanism: str, iterations: int, password_file: Path | None
) -> None:
    """Create a user, or give one a password for another mechanism."""
    _set_password(where, output, name, mechanism, iterations, password_file, is_new=True)


@user.command("alter")
@click.argument("name")
@password_options
@connection_options
def alter_user(
    where: Where, output: str, name: str, mechanism: str, iterations: int, password_file: Path | None
) -> None:
    """Change the password of a user."""
    _set_password(where, output, name, mechanism, iterations, password_file, is_new=False)


@user.command("delete")
@click.argument("name")
@mechanism_option(None)
@connection_options
def delete_user(where: Where, output: str, name: str, mechanism: str | None) -> None:
    """Delete the passwords of a user. Connections that are logged in stay."""
    with errors_in_one_line():
        admin = connect(where)
        found = admin.scram_users().get(name, {})
        wanted = [one for one in found if mechanism in (None, one)]
        if not wanted:
            raise click.ClickException(f"user {name!r} has no password{f' for {mechanism}' if mechanism else ''}")
        admin.delete_passwords(name, wanted)
        _say(output, f"Deleted user {name}: {', '.join(wanted)}.")


@user.command("list")
@connection_options
def list_users(where: Where, output: str) -> None:
    """Print the users, their mechanisms and iterations."""
    with errors_in_one_line():
        users = connect(where).scram_users()
    if output == "json":
        print_json(users)
        return
    for name, mechanisms in users.items():
        echo(
            f"{name}: {', '.join(f'{mechanism} ({iterations} iterations)' for mechanism, iterations in mechanisms.items())}"
        )
    if not users:
        echo("No users.")


def _set_password(
    where: Where, output: str, name: str, mechanism: str, iterations: int, file: Path | None, *, is_new: bool
) -> None:
    with errors_in_one_line():
        admin = connect(where)
        has_one = mechanism in admin.scram_users().get(name, {})
        if has_one and is_new:
            raise click.ClickException(f"user {name!r} has a password for {mechanism}; `ottla user alter` changes it")
        if not has_one and not is_new:
            raise click.ClickException(f"user {name!r} has no password for {mechanism}; `ottla user create` sets one")
        password = _password(file)
        if not password:
            raise click.ClickException("the password is empty")
        admin.set_password(name, mechanism, iterations, password)
        _say(output, f"{'Created' if is_new else 'Altered'} user {name}: {mechanism}.")


def _password(file: Path | None) -> str:
    if file is None:
        given: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return given
    with click.open_file(str(file), encoding="utf-8") as lines:
        line: str = lines.readline()
        return line.rstrip("\r\n")


def _say(output: str, text: str) -> None:
    if output == "json":
        print_json({"done": text})
    else:
        echo(text)
