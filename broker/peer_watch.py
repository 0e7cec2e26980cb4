"""Whom of the other brokers clients should rather not be sent to just now (CTL-16).

A client whose leader died asks the others for the new one in the same millisecond. Told the old leader once more, it
believes that for a second and longer. So every broker keeps an idle connection to every other one: while one has ended
and nothing else is known yet, its broker is *suspected*, and Metadata says LEADER_NOT_AVAILABLE for what it leads. That
is only a hint to clients, for a moment: who leads and who is dead is decided by the controller and ZooKeeper alone.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.metadata_cache import MetadataCache
from protocol.connection_watch import Address, Closable
from protocol.types import BrokerInfo, TopicPartition

Watch = Callable[[Address, Callable[[], None], Callable[[bool], None]], Closable]
"""(address, found dead, suspected)"""


class PeerWatch:
    """Follows the metadata cache from now on: watches the live brokers' control listeners, and marks who is suspected."""

    def __init__(self, metadata: MetadataCache, own_id: int, control_listener: str, watch: Watch) -> None:
        self._metadata = metadata
        self._own_id = own_id
        self._control_listener = control_listener
        self._watch = watch
        self._watched: dict[int, tuple[BrokerInfo, Closable]] = {}
        self._forget = metadata.on_change(self._metadata_changed)

    def close(self) -> None:
        self._forget()
        for broker_id in list(self._watched):
            self._end(broker_id)

    def _metadata_changed(self, _: list[TopicPartition]) -> None:
        live = {broker.id: broker for broker in self._metadata.brokers() if broker.id != self._own_id}
        for broker_id, (broker, _watch) in list(self._watched.items()):
            if live.get(broker_id) != broker:
                self._end(broker_id)
        for broker_id, broker in live.items():
            if broker_id not in self._watched:
                self._begin(broker)

    def _begin(self, broker: BrokerInfo) -> None:
        endpoint = broker.endpoint(self._control_listener)
        if endpoint is None:
            return

        def suspected(is_suspected: bool) -> None:
            if is_suspected:
                self._metadata.suspected.add(broker.id)
            else:
                self._metadata.suspected.discard(broker.id)

        address = (endpoint.host, endpoint.port)
        self._watched[broker.id] = (broker, self._watch(address, lambda: None, suspected))

    def _end(self, broker_id: int) -> None:
        self._watched.pop(broker_id)[1].close()
        self._metadata.suspected.discard(broker_id)
