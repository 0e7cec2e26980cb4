"""What a ConsumerGroupHeartbeat is refused for, before its group is asked."""

from __future__ import annotations

import pytest

from broker.apis.consumer_group_heartbeat import _complaint
from protocol.kafka.consumer_heartbeat_codec import HeartbeatRequest


@pytest.mark.parametrize(("length", "words"), [(32_767, ""), (32_768, "can have 32767 bytes at most")])
@pytest.mark.parametrize("field", ["member_id", "regex"])
def test_no_record_can_hold_a_longer_text(field: str, length: int, words: str) -> None:
    beat = HeartbeatRequest("g", "m", 0, None, None, 1_000, ["t"], None, None, [])
    assert words in _complaint(beat._replace(**{field: "x" * length}), 1)
    assert not words or words in _complaint(beat._replace(**{field: "\N{EURO SIGN}" * (length // 3 + 1)}), 1)
