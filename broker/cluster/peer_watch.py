"""Watches the other brokers, to know which of them clients should avoid at the moment (CTL-16).

Every broker keeps an idle connection to every other broker. A broker whose connection has ended is *suspected* until more is
known. A broker that the controller no longer lists as live has *departed*. `suspected_leaders.py` acts on both.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.suspected_leaders import SuspectedLeaders
from protocol.failure_detection.connection_watch import Closable
from protocol.types import Address, BrokerInfo, TopicPartition

WatchPeer = Callable[[Address, Callable[[], None], Callable[[bool], None]], Closable]
"""(address, called when the peer is found dead, called with whether the peer is suspected)"""


class PeerWatch:
    """Follows the metadata cache: watches the live brokers' control listeners, and reports which brokers are in doubt."""

    def __init__(
        self,
        metadata: MetadataCache,
        suspected_leaders: SuspectedLeaders,
        own_id: int,
        control_listener: str,
        watch: WatchPeer,
    ) -> None:
        self._metadata = metadata
        self._suspected_leaders = suspected_leaders
        self._own_id = own_id
        self._control_listener = control_listener
        self._watch = watch
        self._watched: dict[int, tuple[BrokerInfo, Closable]] = {}
        self._forget = metadata.on_change(self._metadata_changed)

    def close(self) -> None:
        """Stops watching. No broker is suspected any more."""
        self._forget()
        for broker_id in list(self._watched):
            self._end(broker_id)
        self._suspected_leaders.peers_are_watched = False
        self._suspected_leaders.close()

    def _metadata_changed(self, _: list[TopicPartition]) -> None:
        live = {broker.id: broker for broker in self._metadata.brokers() if broker.id != self._own_id}
        for broker_id, (broker, _watch) in list(self._watched.items()):
            if live.get(broker_id) != broker:
                self._end(broker_id)
            if broker_id not in live:
                self._suspected_leaders.depart(broker)
        for broker_id, broker in live.items():
            if broker_id not in self._watched:
                self._suspected_leaders.forget_departure(broker_id)
                self._begin(broker)
        self._suspected_leaders.peers_are_watched = bool(self._watched)
        self._suspected_leaders.look_again()

    def _begin(self, broker: BrokerInfo) -> None:
        endpoint = broker.endpoint(self._control_listener)
        if endpoint is None:
            return

        def suspected(is_suspected: bool) -> None:
            if is_suspected:
                self._suspected_leaders.suspect(broker.id)
            else:
                self._suspected_leaders.trust(broker.id)

        address = (endpoint.host, endpoint.port)
        self._watched[broker.id] = (broker, self._watch(address, lambda: None, suspected))

    def _end(self, broker_id: int) -> None:
        self._watched.pop(broker_id)[1].close()
        self._suspected_leaders.unreachable.discard(broker_id)
