"""`ottla quota`: quotas of users, client ids and addresses, of any Kafka (KIP-546), with the option names of Kafka's `kafka-configs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from protocol.numbers import decimal_number
from tools.admin.connection import connect, connection_options, print_json
from tools.admin.naming import Where
from tools.failures import errors_in_one_line
from tools.numbers import Parsed
from tools.terminal import echo

Command = TypeVar("Command", bound=Callable[..., None])
Entity = Mapping[str, str | None]
"""The kind of entity -> its name; None: all that have no quota of their own."""

USER, CLIENT_ID, IP = "user", "client-id", "ip"
KIND_OF = {"users": USER, "clients": CLIENT_ID, "ips": IP}
"""Kafka's `--entity-type`."""
OF_CLIENTS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
OF_ADDRESSES = ("connection_creation_rate",)
EVERY_OTHER = "<default>"


def _setting(text: str) -> tuple[str, float]:
    key, equals, value = text.partition("=")
    if not equals or key not in OF_CLIENTS + OF_ADDRESSES:
        raise ValueError(f"{text!r}: give one of {', '.join(OF_CLIENTS + OF_ADDRESSES)} as NAME=NUMBER")
    try:
        return key, decimal_number(value)
    except ValueError:
        raise ValueError(f"{text!r}: {value!r} is no number") from None


def _quota(text: str) -> str:
    if text not in OF_CLIENTS + OF_ADDRESSES:
        raise ValueError(f"{text!r}: give one of {', '.join(OF_CLIENTS + OF_ADDRESSES)}")
    return text


SETTING = Parsed("name=number", _setting)
QUOTA = Parsed("name", _quota)


def entity_options(command: Command) -> Command:
    """Whose quota. The command gets the arguments of `_entity`."""
    types = click.Choice([*KIND_OF])
    options = (
        click.option("--user", metavar="NAME", help="a user"),
        click.option("--user-defaults", is_flag=True, help="every user without a quota of its own"),
        click.option("--client-id", "--client", metavar="ID", help="a client id; with --user, of this user"),
        click.option("--client-defaults", is_flag=True, help="every client id without a quota of its own"),
        click.option("--ip", metavar="ADDRESS", help="an address from which clients connect"),
        click.option("--ip-defaults", is_flag=True, help="every address without a quota of its own"),
        click.option("--entity-type", multiple=True, type=types, help="as in kafka-configs; may be repeated"),
        click.option("--entity-name", multiple=True, metavar="NAME", help="one for each --entity-type"),
        click.option("--entity-default", is_flag=True, help="the default of each --entity-type without a name"),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def quota() -> None:
    """Set, remove and list quotas: how much clients may use (docs/OPERATING.md)."""


@quota.command("set")
@entity_options
@click.argument("settings", nargs=-1, required=True, type=SETTING)
@connection_options
def set_quotas(where: Where, output: str, settings: Sequence[tuple[str, float]], **options: Any) -> None:
    """Set quotas, such as producer_byte_rate=1048576."""
    entity = _only(options)
    _alter(where, output, entity, dict(settings), "Set")


@quota.command("remove")
@entity_options
@click.argument("names", nargs=-1, type=QUOTA)
@connection_options
def remove_quotas(where: Where, output: str, names: Sequence[str], **options: Any) -> None:
    """Remove quotas; all of them if none is named."""
    entity = _only(options)
    every = OF_ADDRESSES if IP in entity else OF_CLIENTS
    _alter(where, output, entity, dict.fromkeys(names or every), "Removed")


@quota.command("list")
@entity_options
@connection_options
def list_quotas(where: Where, output: str, **options: Any) -> None:
    """Print quotas: all of them, those of a kind (--entity-type), or those of one user, client id or address."""
    named = _entity(options)
    kinds = [KIND_OF[kind] for kind in options["entity_type"]]
    # A kind without a name: all of it.
    wanted = {kind: named.get(kind, ...) for kind in dict.fromkeys((*kinds, *named))}
    with errors_in_one_line():
        found = connect(where).quotas(wanted, is_strict=bool(wanted))
    if output == "json":
        print_json([{"entity": dict(entity), "quotas": dict(quotas)} for entity, quotas in found])
        return
    for entity, quotas in found:
        echo(f"{shown(entity)}: {', '.join(f'{key}={value:.15g}' for key, value in sorted(quotas.items()))}")
    if not found:
        echo("No quotas.")


def shown(entity: Entity) -> str:
    """The entity in words."""
    words = []
    for kind, name in sorted(entity.items(), key=lambda one: one[0] != USER):
        words.append(f"every other {kind}" if name is None else f"{kind} {name!r}")
    return " with ".join(words)


def _entity(options: Mapping[str, Any]) -> dict[str, str | None]:
    """The entities that the options name. Raises UsageError."""
    entity: dict[str, str | None] = {}
    for kind, name, is_default in (
        (USER, options["user"], options["user_defaults"]),
        (CLIENT_ID, options["client_id"], options["client_defaults"]),
        (IP, options["ip"], options["ip_defaults"]),
    ):
        if name is not None and is_default:
            raise click.UsageError(f"give the name of the {kind} or the default, not both.")
        if name is not None or is_default:
            entity[kind] = name
    types, names = options["entity_type"], options["entity_name"]
    if (names or options["entity_default"]) and not types:
        raise click.UsageError("--entity-name and --entity-default need --entity-type.")
    if len(names) > len(types):
        raise click.UsageError("there are more --entity-name than --entity-type.")
    for at, kind in enumerate(types):
        if KIND_OF[kind] in entity:
            raise click.UsageError(f"--entity-type {kind} is given twice.")
        if at < len(names):
            entity[KIND_OF[kind]] = names[at]
        elif options["entity_default"]:
            entity[KIND_OF[kind]] = None
    if "" in entity.values():
        raise click.UsageError("a name is empty.")
    if IP in entity and len(entity) > 1:
        raise click.UsageError("an address has no user and no client id.")
    return entity


def _only(options: Mapping[str, Any]) -> dict[str, str | None]:
    entity = _entity(options)
    if len(entity) < len(options["entity_type"]) or not entity:
        raise click.UsageError("say whose quota: --user, --client-id, --ip, or a default of these.")
    return entity


def _alter(where: Where, output: str, entity: Entity, changes: Mapping[str, float | None], done: str) -> None:
    with errors_in_one_line():
        connect(where).alter_quotas(entity, changes)
    if output == "json":
        print_json({"entity": dict(entity), "changes": dict(changes)})
    else:
        echo(f"{done} {', '.join(changes)} of {shown(entity)}.")
