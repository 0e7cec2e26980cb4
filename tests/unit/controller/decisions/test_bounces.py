"""Members of an ISR that registered after their partition's state was written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.decisions.bounces import Bounces
from protocol.types import BrokerInfo, LeaderAndIsr, TopicPartition

ZXIDS = st.integers(1, 60)


def state(*isr: int) -> LeaderAndIsr:
    return LeaderAndIsr(isr[0], 0, isr, 1, 0)


@given(
    epochs=st.dictionaries(st.integers(1, 5), ZXIDS.map(lambda zxid: 2 * zxid)),
    written=st.lists(st.tuples(st.lists(st.integers(1, 5), min_size=1, unique=True), ZXIDS.map(lambda z: 2 * z + 1))),
)
def test_a_bounced_member_registered_after_the_write(
    epochs: dict[int, int], written: list[tuple[list[int], int]]
) -> None:
    """Registrations have even zxids here and writes odd ones, because no two transactions have the same zxid."""
    bounces = Bounces([BrokerInfo(broker, epoch, ()) for broker, epoch in epochs.items()])
    assert bounces.newest == max(epochs.values(), default=0)
    states = {TopicPartition("t", number): state(*isr) for number, (isr, _) in enumerate(written)}
    mzxids = {TopicPartition("t", number): mzxid for number, (_, mzxid) in enumerate(written)}
    bounces.note(states, {tp: mzxid for tp, mzxid in mzxids.items() if mzxid < bounces.newest})
    found = {tp: bounces.since(tp) & set(states[tp].isr) for tp in bounces}
    newer = {tp: {b for b in states[tp].isr if epochs.get(b, 0) > mzxids[tp]} for tp in states}
    assert found == {tp: members for tp, members in newer.items() if members}
    assert len(bounces) == len(found)
