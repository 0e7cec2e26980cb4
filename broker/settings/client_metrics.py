"""The settings of a subscription to metrics of clients (KIP-714, `ClientMetricsConfigs` in Kafka), below `/config/client-metrics`.

Expressions have RE2's syntax: each client is matched against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.settings.config import ConfigError, setting
from protocol.errors import KafkaError
from protocol.plain_text import shortened
from protocol.regular_expressions import compiled

SELECTORS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""What a pattern may look at."""
SHOWN_MAX = 200


def patterns_in(text: str) -> Mapping[str, Any]:
    """Selector -> compiled expression, of a list `selector=expression,...`. Of a selector that is named twice, the last counts.

    Raises ConfigError.
    """
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        selector, *expressions = (part.strip() for part in item.split("="))
        shown = shortened(repr(item), SHOWN_MAX)
        if len(expressions) != 1 or not expressions[0] or selector not in SELECTORS:
            raise ConfigError(f"{shown}: expected selector=expression,... with the selectors {', '.join(SELECTORS)}")
        try:
            found[selector] = compiled(expressions[0])
        except KafkaError as problem:
            raise ConfigError(f"{shown}: {shortened(problem.message, SHOWN_MAX)}") from None
    return found


@dataclass(frozen=True, kw_only=True)
class ClientMetricsConfig:
    """A subscription's settings."""

    interval_ms: int = setting(
        300_000, minimum=100, maximum=3_600_000, doc="How often a client pushes its metrics, in ms."
    )
    metrics: str = setting(
        "", is_list=True, doc="Beginnings of the names of the metrics that clients push; *: all of them."
    )
    match: str = setting(
        "", is_list=True, check=patterns_in, doc="Which clients push: selector=expression,...; empty: every client."
    )
