"""Where other brokers serve fetches, as the controller last said."""

from __future__ import annotations

from broker.settings.config import BrokerConfig
from protocol.types import BrokerInfo

DEFAULT_CONTROL_LISTENER = "CONTROLLER"


class LeaderAddresses:
    """Of all brokers that were ever named: one that has just died may be a leader still."""

    def __init__(self, config: BrokerConfig) -> None:
        self._listener = config.inter_broker_listener_name
        self._control_listener = config.control_plane_listener_name or DEFAULT_CONTROL_LISTENER
        self._brokers: dict[int, BrokerInfo] = {}

    def learn(self, broker: BrokerInfo) -> None:
        """What is said of an earlier life is not news."""
        known = self._brokers.get(broker.id)
        if known is None or known.epoch <= broker.epoch:
            self._brokers[broker.id] = broker

    def of(self, leader: int) -> tuple[str, int] | None:
        """`inter.broker.listener.name`, else the broker's first listener for clients."""
        broker = self._brokers.get(leader)
        if broker is None:
            return None
        for endpoint in broker.endpoints:
            name = endpoint.listener
            if name == self._listener or (not self._listener and name != self._control_listener):
                return endpoint.host, endpoint.port
        return None
