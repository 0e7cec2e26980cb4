"""Names of consumer groups for shell completion."""

from __future__ import annotations

import click

from tools.admin.completion import TIMEOUT_S, where_of
from tools.failures import AdminError


def complete_groups(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Consumer groups that start with `incomplete`."""
    from tools.groups.kafka_groups import KafkaGroups  # imported when needed, so that `--help` is fast

    where = where_of(context)
    try:
        client = KafkaGroups(where.servers(), where.command_config, connect_timeout_s=TIMEOUT_S)
        groups, _ = client.list_groups(timeout_s=TIMEOUT_S)
    except AdminError:
        return []
    return [group.group for group in groups if group.group.startswith(incomplete)]
