"""Decides the id of a topic that has lost it, by what the brokers know (KIP-516). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set

from protocol.rpc.messages import NO_TOPIC_ID


def id_by_answers(answers: Mapping[int, str], in_sync: Set[int]) -> str | None:
    """The id that one of the in-sync brokers knows; NO_TOPIC_ID if all of them have answered and none knows one; None: wait.

    Only the in-sync brokers count: another broker may still have the log of an earlier topic of that name.

    >>> id_by_answers({1: "", 2: "AAAAAAAAAAAAAAAAAAAAAA"}, {1, 2, 3})
    'AAAAAAAAAAAAAAAAAAAAAA'
    """
    known = [answers[broker] for broker in sorted(in_sync & answers.keys()) if answers[broker] != NO_TOPIC_ID]
    if known:
        return known[0]
    return NO_TOPIC_ID if in_sync and in_sync <= answers.keys() else None
