"""The words of faults in single requests."""

from __future__ import annotations

import pytest

from protocol.conversation.rule import Rule
from tools.faults.request_words import line_of, parse_request_fault
from tools.faults.words import FaultError, parse_words

PRODUCE, FETCH, METADATA, JOIN_GROUP, END_TXN = 0, 1, 3, 11, 26


def rule(effect: str, *apis: int, **fields: object) -> Rule:
    return Rule("", effect, apis, everywhere=True, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "answer produce with NOT_LEADER_OR_FOLLOWER 3 times",
            rule("answer", PRODUCE, error="NOT_LEADER_OR_FOLLOWER", times=3),
        ),
        (
            "answer fetch of orders-0 with KAFKA_STORAGE_ERROR for 5s",
            rule("answer", FETCH, error="KAFKA_STORAGE_ERROR", topic="orders", partition=0, lasts_s=5),
        ),
        ("answer metadata with the leaders of 5s ago", rule("leaders-before", METADATA, seconds=5)),
        ("lose the answer to EndTxn once", rule("lose", END_TXN, times=1)),
        ("lose answers to 26 and cut until healed", rule("lose", END_TXN, cuts=True)),
        ("drop join-group of client billing-*", rule("drop", JOIN_GROUP, client="billing-*")),
        ("drop everything client x for 500ms", rule("drop", client="x", lasts_s=0.5)),
        ("delay fetch by 200ms (+-50ms) for 10s", rule("delay", FETCH, seconds=0.2, spread_s=0.05, lasts_s=10)),
        ("cut the connection in the middle of the answer to metadata", rule("halve", METADATA)),
        ("garble the answer to fetch every 3rd", rule("garble", FETCH, every=3)),
        ("throttle client batch-7 by 300ms", rule("throttle", seconds=0.3, client="batch-7")),
        ("refuse connections of principal bob", rule("refuse", principal="bob")),
        ("close idle connections now", rule("close-idle")),
        (
            "answer produce with INVALID_RECORD versions 9-11 the 2nd time of topic a-b",
            rule("answer", PRODUCE, error="INVALID_RECORD", versions=(9, 11), nth=2, topic="a-b"),
        ),
        (
            "drop produce with probability 10% seed 4 of brokers",
            rule("drop", PRODUCE, probability=0.1, seed=4, of_brokers=True),
        ),
    ],
)
def test_words_are_read_and_written(line: str, expected: Rule) -> None:
    found = parse_request_fault(line)
    assert {**found.rule.to_json(), "id": ""} == expected.to_json()
    assert parse_request_fault(line_of(found)) == found
    assert Rule.from_json(found.rule.to_json()) == found.rule
    words = parse_words(line)
    assert parse_words(str(words)) == words


def test_a_line_of_a_script_says_where_and_when() -> None:
    words = parse_words("lose the answer to end-txn once at transaction-coordinator of tx at 20s")
    assert words.request is not None
    assert (words.request.role, words.at_s, words.lasts_s) == ("transaction-coordinator of tx", 20, None)
    assert not words.request.rule.everywhere


def test_words_may_have_dashes() -> None:
    """As those of the other faults on the command line."""
    assert parse_words("drop fetch --for 5s --of topic a") == parse_words("drop fetch of topic a for 5s")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("answer produce with NOT_LEADER", "did you mean NOT_LEADER_OR_FOLLOWER?"),
        (
            "answer produce with TRANSACTION_ABORTABLE versions 3-9",
            "produce up to v9 cannot give TRANSACTION_ABORTABLE",
        ),
        ("answer prodce with REQUEST_TIMED_OUT", "did you mean produce?"),
        ("answer api-versions with UNSUPPORTED_VERSION", "api-versions cannot be answered with an error"),
        ("answer everything with UNKNOWN_SERVER_ERROR", "answer needs one API"),
        ("lose the answer to end-txn of orders-0", "names no topic, so the rule could hit nothing"),
        ("drop heartbeat of transactional-id x", "names no transactional id"),
        ("drop sasl-authenticate", "belongs to the login"),
        ("delay fetch", "delay needs time"),
        ("delay fetch by 99s", "seconds must be from 0 to 60"),
        ("delay fetch by 10ms +-20ms", "a spread is for a delay"),
        ("garble the answer to produce", "garble is for fetch"),
        ("drop fetch onec", "did you mean once?"),
        ("drop fetch once twice", "`twice` is not one of the words"),
        ("drop fetch for 5s for 6s", "twice"),
        ("drop fetch at midnight", "neither a time, such as at 20s, nor a role"),
        ("close idle connections of client x", "no filter and no limit"),
        ("drop fetch with probability 0%", "a probability is above 0"),
        ("delay fetch by 10ms and cut", "does not cut connections"),
        ("drop", "ends where an API was expected"),
        ("drop fetch 0 times", "`0 times` hits nothing"),
        ("drop fetch every 0th", "expected a number such as 3rd"),
        ("drop fetch for 0s", "`for 0s` is none"),
    ],
)
def test_bad_words_say_what_was_expected(line: str, reason: str) -> None:
    with pytest.raises(FaultError) as problem:
        parse_words(line)
    assert reason in str(problem.value)
