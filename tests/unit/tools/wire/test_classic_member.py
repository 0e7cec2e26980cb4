"""The range assignor: as in Kafka's documentation, each partition once, evenly, and only to members that read its topic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.types import TopicPartition
from tools.wire.classic_member import ranges

TOPICS = st.sampled_from(["t", "u", "v"])


def test_the_first_members_have_one_more() -> None:
    shares = ranges({"b": ["t"], "a": ["t", "u"]}, {"t": 3, "u": 1})
    assert {member: [str(place) for place in its] for member, its in shares.items()} == {
        "a": ["t-0", "t-1", "u-0"],
        "b": ["t-2"],
    }


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.sets(TOPICS)), st.dictionaries(TOPICS, st.integers(0, 9))
)
def test_each_partition_has_one_reader(topics: dict[str, set[str]], counts: dict[str, int]) -> None:
    shares = ranges(topics, counts)
    assert shares.keys() == topics.keys()
    given_out = [place for its in shares.values() for place in its]
    read = set().union(*topics.values()) if topics else set()
    assert sorted(given_out) == sorted(
        TopicPartition(topic, n) for topic in read & counts.keys() for n in range(counts[topic])
    )
    for topic in read & counts.keys():
        sizes = [
            sum(place.topic == topic for place in its) for member, its in shares.items() if topic in topics[member]
        ]
        assert max(sizes) - min(sizes) <= 1
    assert all(place.topic in topics[member] for member, its in shares.items() for place in its)
