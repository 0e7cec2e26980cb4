"""IncrementalAlterConfigs (API 44), v0 and v1: sets, resets, appends to and subtracts from single settings (KIP-339)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from broker.apis.alter_configs import alter_resources
from broker.apis.config_admin import Resource
from broker.apis.config_changes import Change
from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey


def incremental_alter_configs(context: ApiContext, request: Request) -> Coroutine[Any, Any, None]:
    header = request.header
    api_key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    body = messages.decode_request(api_key, header.api_version, request.frame, header.body_offset)
    asked = [
        (
            Resource(row.resource_type, row.resource_name),
            [Change(config.name, config.config_operation, config.value) for config in row.configs],
        )
        for row in body.resources
    ]
    return alter_resources(context, request, api_key, asked, replaces_all=False, validate_only=body.validate_only)
