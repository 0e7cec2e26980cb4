"""Whether brokers serve: each answers Metadata, knows a controller and lists all the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.wire.security import Security

METADATA_VERSION = 9
CLIENT_ID = "ottla-cluster"


@dataclass(frozen=True, slots=True)
class BrokerView:
    """The cluster according to one broker; `controller_id` is -1 if it knows none."""

    broker_ids: frozenset[int]
    controller_id: int


def broker_view(address: tuple[str, int], timeout_s: float, security: Security | None = None) -> BrokerView | None:
    """The answer of the broker at `address`; None without a valid answer."""
    # Imported late: loading Kafka's schemas takes a while, in which brokers that were just started can continue.
    from protocol.kafka.api_keys import ApiKey
    from tools.wire.client import ask

    body = {"topics": [], "allow_auto_topic_creation": False}
    answer = ask(address, timeout_s, ApiKey.METADATA, METADATA_VERSION, body, CLIENT_ID, security)
    if answer is None:
        return None
    return BrokerView(frozenset(broker.node_id for broker in answer.brokers), answer.controller_id)


def not_ready(
    addresses: Mapping[int, tuple[str, int]],
    expected: Collection[int],
    timeout_s: float,
    security: Security | None = None,
) -> dict[int, str]:
    """Broker id -> what is missing, for those of `addresses` that are not ready. A ready broker lists all `expected` brokers."""
    reasons: dict[int, str] = {}
    for broker_id, address in addresses.items():
        view = broker_view(address, timeout_s, security)
        if view is None:
            reasons[broker_id] = "does not answer"
        elif view.controller_id < 0:
            reasons[broker_id] = "knows no controller"
        elif not view.broker_ids >= set(expected):
            missing = ", ".join(map(str, sorted(set(expected) - view.broker_ids)))
            reasons[broker_id] = f"does not know broker {missing}"
    return reasons
