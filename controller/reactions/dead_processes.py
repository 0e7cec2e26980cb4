"""Unregisters a broker whose process died; the watch on `/brokers/ids` does the rest (CTL-16, CTL-5)."""

from __future__ import annotations

import logging

from controller.term import Term
from protocol.failure_detection.evidence import Judgements
from protocol.zk.session import DeleteOp
from protocol.zk.znodes import BrokerIdZNode

log = logging.getLogger(__name__)


async def on_broker_found_dead(term: Term, broker_id: int, broker_epoch: int, judgements: Judgements) -> None:
    """Deletes the registration of this life of the broker, and of no other life.

    ZooKeeper can make a write conditional only on a version, and the node of every life starts with version 0. Therefore the czxid is
    compared in a read just before the write. This can delete the node of a later life only if that life binds its listener after the
    last refusal and registers within this one round trip. It then sees that its node was removed, and registers again.
    """
    known = term.cluster.brokers.get(broker_id)
    if known is None or known.epoch != broker_epoch:
        return
    path = BrokerIdZNode.path(broker_id)
    (node,) = await term.store.get_many([path])
    if node is None or node[1].czxid != broker_epoch:
        return  # the end of this life is already an event
    stat = node[1]
    judgements.see(broker_id, stat.ephemeral_owner, stat.czxid)
    if judgements.is_refuted(broker_id, stat.ephemeral_owner):
        log.debug("broker %d was judged dead before, so it counts as dead only when its session ends", broker_id)
        return
    (result,) = await term.store.fenced([[DeleteOp(path, stat.version)]])
    if isinstance(result, list):
        judgements.note(broker_id, stat.ephemeral_owner)
        log.warning("broker %d no longer listens: it is unregistered", broker_id)
        term.events.write("broker_found_dead", broker=broker_id, broker_epoch=broker_epoch)
