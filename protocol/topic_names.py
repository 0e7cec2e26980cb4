"""Checks names of topics, numbers of partitions and ids of brokers, from clients, ZooKeeper, control requests and paths. Pure.

A partition's directory is called `<topic>-<partition>`. All code that creates, renames or removes such a directory checks the name here
first (BAD-26; Kafka's `Topic.validate`).
"""

from __future__ import annotations

import re

OFFSETS_TOPIC = "__consumer_offsets"
"""The topic that stores consumer groups and their committed offsets."""
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})
"""The topics that only brokers write. Clients cannot produce to them, as in Kafka."""

TOPIC_NAME_MAX = 249
"""Characters. With a partition of five digits, the directory's name has 255, the limit of file systems."""

INT_MAX = 2**31 - 1
"""The largest partition, broker id, leader epoch and controller epoch: Kafka's protocol has 32 bits for each."""

SHOWN_MAX = 80
"""Characters of a bad name in a log line."""

_LEGAL = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")


def is_valid_topic_name(name: object) -> bool:
    """Whether `name` has 1 to 249 of the characters a-z A-Z 0-9 . _ - and is neither `.` nor `..`."""
    return type(name) is str and _LEGAL.fullmatch(name) is not None


def is_partition_number(number: object) -> bool:
    """Whether `number` is a whole number from 0 to 2^31-1. True is not, although Python treats it as 1."""
    return type(number) is int and 0 <= number <= INT_MAX


def number_of(text: str) -> int | None:
    """The partition or broker id in `text`: 0 to 2^31-1, in ASCII digits without leading zeros. None for any other text."""
    if not _NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if number <= INT_MAX else None


def shown(name: object) -> str:
    """A name from outside for a log line: quoted, in printable ASCII, shortened to about SHOWN_MAX characters."""
    text = name if isinstance(name, str) else repr(name)
    if len(text) <= SHOWN_MAX:
        return ascii(text)
    return f"{text[:SHOWN_MAX]!a}... ({len(text)} characters)"
