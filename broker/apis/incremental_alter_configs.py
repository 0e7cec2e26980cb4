"""IncrementalAlterConfigs (API 44), v0 and v1: sets, resets, appends to and subtracts from single settings (KIP-339)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from broker.admin.config_changes import Change
from broker.apis.alter_configs import alter_resources
from broker.network.request_channel import Request
from broker.requests.context import ApiContext


def incremental_alter_configs(context: ApiContext, request: Request) -> Coroutine[Any, Any, None]:
    def changes_of(row: Any) -> list[Change]:
        return [Change(config.name, config.config_operation, config.value) for config in row.configs]

    return alter_resources(context, request, changes_of, replaces_all=False)
