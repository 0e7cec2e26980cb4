"""Which of the eight levels of quotas counts: beside Kafka's two steps, which are to find whose use counts and then the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quotas.limits import Entity, Limits
from protocol.zk.entity_names import DEFAULT

LEVELS = (
    Entity("u", "c"),
    Entity("u", DEFAULT),
    Entity("u"),
    Entity(DEFAULT, "c"),
    Entity(DEFAULT, DEFAULT),
    Entity(DEFAULT),
    Entity("", "c"),
    Entity("", DEFAULT),
)
"""As in Kafka's documentation: the first that has a quota counts."""
SHARED_BY = (*[Entity("u", "c")] * 2, Entity("u"), *[Entity("u", "c")] * 2, Entity("u"), *[Entity("", "c")] * 2)


@pytest.mark.parametrize("first", range(9))
def test_the_most_specific_level_counts(first: int) -> None:
    limits = Limits()
    for number, entity in enumerate(LEVELS[first:], first):
        limits.set(entity, number)
    assert limits.of("u", "c") == ((SHARED_BY[first], first) if first < 8 else None)


def kafkas(given: dict[Entity, float], user: str, client: str | None) -> float | None:
    """`DefaultQuotaCallback`: the tags of the client's metric, and the quota of these tags."""
    users, both = (user, ""), (user, client)
    tags: tuple[str, str | None] = ("", client)
    for entity, found in (
        (Entity(user, client or "?"), both),
        (Entity(user, DEFAULT), both),
        (Entity(user), users),
        (Entity(DEFAULT, client or "?"), both),
        (Entity(DEFAULT, DEFAULT), both),
        (Entity(DEFAULT), users),
    ):
        if entity in given:
            tags = found
            break
    named, client_named = tags
    if client_named is None:
        return None
    if named and client_named:
        order = [Entity(named, client_named), Entity(named, DEFAULT), Entity(DEFAULT, client_named)]
        order.append(Entity(DEFAULT, DEFAULT))
    elif named:
        order = [Entity(named), Entity(DEFAULT)]
    else:
        order = [Entity("", client_named), Entity("", DEFAULT)] if client_named else []
    return next((given[entity] for entity in order if entity in given), None)


@given(
    st.dictionaries(st.sampled_from([*LEVELS, Entity("v"), Entity("v", "c"), Entity("u", "d")]), st.integers(1, 99)),
    st.sampled_from(["u", "v"]),
    st.sampled_from(["c", "d", "", None]),
)
def test_the_quota_is_kafkas(quotas: dict[Entity, float], user: str, client: str | None) -> None:
    limits = Limits()
    for entity, value in quotas.items():
        limits.set(entity, value)
    found = limits.of(user, client)
    assert (found and found[1]) == kafkas(quotas, user, client)


def test_names_are_those_of_znodes() -> None:
    limits = Limits()
    limits.set(Entity("CN%3Da%2C%20b", "%3Cdefault%3E"), 1)
    assert limits.of("CN=a, b", DEFAULT) == (Entity("CN%3Da%2C%20b", "%3Cdefault%3E"), 1)
    assert limits.of("CN=a, b", "other") is None
