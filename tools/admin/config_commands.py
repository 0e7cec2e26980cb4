"""`ottla config describe|alter`: the configs of topics, brokers, groups and client metrics, with the options of Kafka's `kafka-configs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from protocol.numbers import is_plain_number
from tools.admin.cluster_view import ClusterView
from tools.admin.completion import complete_brokers, complete_topics
from tools.admin.config_values import (
    BROKERS,
    ENTITY_DEFAULT,
    KINDS,
    TOPICS,
    ChangeError,
    Entity,
    entity_json,
    entity_lines,
    is_sensitive,
    merge_changes,
    nearest,
    own_configs,
    parse_additions,
)
from tools.admin.connection import connect, connection_options, print_json
from tools.admin.naming import Where
from tools.admin.topic_views import ids_text
from tools.failures import AdminError, errors_in_one_line
from tools.terminal import echo

if TYPE_CHECKING:
    from tools.admin.kafka_admin import KafkaAdmin

Command = TypeVar("Command", bound=Callable[..., None])


def complete_entities(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Broker ids or topics, depending on an earlier `--entity-type`."""
    complete = {BROKERS: complete_brokers, TOPICS: complete_topics}.get(context.params.get("entity_type", TOPICS))
    return [] if complete is None else complete(context, parameter, incomplete)


def entity_options(command: Command) -> Command:
    """`--entity-type`, `--entity-name` and `--entity-default`."""
    for option in (
        click.option("--entity-default", is_flag=True, help="the default for all brokers without a value of their own"),
        click.option(
            "--entity-name",
            metavar="NAME",
            help="a topic, a broker id, a group, or a subscription to the metrics of clients",
            shell_complete=complete_entities,
        ),
        click.option("--entity-type", type=click.Choice(KINDS), required=True),
    ):
        command = option(command)
    return command


@click.group()
def config() -> None:
    """Describe and alter the configs of topics, brokers, groups and client metrics."""


@config.command()
@entity_options
@click.option(
    "--all", "everything", is_flag=True, help="show all effective values, not only those set on the entity itself"
)
@connection_options
def describe(
    entity_type: str,
    entity_name: str | None,
    entity_default: bool,
    everything: bool,
    where: Where,
    output: str,
) -> None:
    """Show configs and the source of each value. Without a name: those of all topics, all brokers, or all groups and subscriptions that
    have some."""
    check_entity(entity_type, entity_name, entity_default)
    with connected(where) as (cluster, admin):
        if entity_type in (TOPICS, BROKERS) or entity_name is not None:
            entities = _entities(entity_type, entity_name, entity_default, cluster)
        else:
            entities = [Entity(entity_type, name) for name in admin.configured(entity_type)]
        described = {
            entity: configs if everything else own_configs(entity, configs)
            for entity, configs in admin.describe_configs(entities).items()
        }
        if output == "json":
            print_json([entity_json(entity, configs) for entity, configs in described.items()])
        else:
            for entity, configs in described.items():
                for line in entity_lines(entity, configs, everything=everything):
                    echo(line)


@config.command()
@entity_options
@click.option(
    "--add-config", "additions", multiple=True, metavar="K=V,K=[V,V],...", help="configs to set; may be repeated"
)
@click.option(
    "--delete-config", "removals", multiple=True, metavar="K,K,...", help="configs to remove; may be repeated"
)
@connection_options
def alter(
    entity_type: str,
    entity_name: str | None,
    entity_default: bool,
    additions: Sequence[str],
    removals: Sequence[str],
    where: Where,
    output: str,
) -> None:
    """Change configs. Changes take effect at once, without a restart."""
    check_entity(entity_type, entity_name, entity_default)
    if entity_name is None and not entity_default:
        raise click.UsageError("missing --entity-name" + (" or --entity-default." if entity_type == BROKERS else "."))
    try:
        changes = merge_changes(parse_additions(additions), removals)
    except ChangeError as problem:
        raise click.UsageError(f"{problem}.") from None
    if not changes:
        raise click.UsageError("nothing to change: use --add-config or --delete-config.")
    with connected(where) as (cluster, admin):
        (entity,) = _entities(entity_type, entity_name, entity_default, cluster)
        present = admin.describe_configs([entity])[entity]
        own = own_configs(entity, present)
        absent = [key for key, value in changes.items() if value is None and key not in own]
        if absent:
            raise AdminError(
                f"{', '.join(absent)} is not set on {entity}, so it cannot be deleted{nearest(absent[0], own)}"
            )
        try:
            admin.alter_configs(entity, changes)
        except AdminError as problem:
            hints = (nearest(key, present) for key in changes if present)
            raise AdminError(f"{problem}{next(filter(None, hints), '')}") from None
        if output == "json":
            shown = {key: None if is_sensitive(key, present) else value for key, value in changes.items()}
            print_json({"entity_type": entity.kind, "entity_name": entity.name or None, "changed": shown})
        else:
            echo(f"Completed updating config for {entity}.")


def check_entity(entity_type: str, entity_name: str | None, entity_default: bool) -> None:
    """Raises UsageError unless the options name one topic, one broker or all."""
    if entity_name is not None and entity_default:
        raise click.UsageError("--entity-name and --entity-default cannot be used together.")
    if entity_default and entity_type != BROKERS:
        raise click.UsageError("--entity-default is only for brokers.")
    if entity_type == BROKERS and entity_name is not None and not is_plain_number(entity_name):
        raise click.UsageError(f"--entity-name {entity_name!r} is not a broker id.")


@contextmanager
def connected(where: Where) -> Iterator[tuple[ClusterView, KafkaAdmin]]:
    with errors_in_one_line():
        admin = connect(where)
        yield admin.cluster(), admin


def _entities(kind: str, name: str | None, is_default: bool, cluster: ClusterView) -> list[Entity]:
    """The entities that the options name. Raises AdminError for a topic or broker that does not exist."""
    if is_default:
        return [Entity(kind, ENTITY_DEFAULT)]
    if name is not None and kind not in (TOPICS, BROKERS):
        return [Entity(kind, name)]
    if kind == TOPICS:
        if name is not None and name not in cluster.topics:
            raise AdminError(f"topic {name!r} does not exist; `ottla topic list` shows the topics")
        return [Entity(kind, topic) for topic in ([name] if name is not None else cluster.topics)]
    live = sorted(cluster.live_brokers)
    if name is not None and int(name) not in live:
        raise AdminError(
            f"broker {name} is not live, and only that broker knows its configs; live brokers: {ids_text(live)}"
        )
    return [Entity(kind, str(broker)) for broker in ([int(name)] if name is not None else live)] + (
        [Entity(kind, ENTITY_DEFAULT)] if name is None else []
    )
