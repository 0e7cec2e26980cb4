"""Topic ids (KIP-516): 16 bytes on the wire, 22 characters in ZooKeeper, in control requests and for people. Pure."""

from __future__ import annotations

import base64
import re
import uuid
from functools import lru_cache

from protocol.topic_names import shown

IDS_KEPT = 4_096
"""Topic ids that are kept in both forms."""
TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


def topic_id_text(topic_id: uuid.UUID) -> str:
    """Kafka's text of an id: the 16 bytes in URL-safe base 64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


@lru_cache(maxsize=IDS_KEPT)
def topic_id_uuid(text: str) -> uuid.UUID:
    """The inverse of `topic_id_text`. Raises ValueError for other text. Hot path: a fetch asks for each partition that it adds."""
    if not TOPIC_ID.fullmatch(text):
        raise ValueError(f"{shown(text)} is not a topic id: expected 22 characters of URL-safe base 64")
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def new_topic_id(random_bytes: bytes) -> str:
    """The text of a new id from 16 random bytes. As in Kafka it never starts with `-`, which would look like an option."""
    first, rest = random_bytes[0], random_bytes[1:]
    if topic_id_text(uuid.UUID(bytes=random_bytes)).startswith("-"):
        first &= 0x7F
    return topic_id_text(uuid.UUID(bytes=bytes([first]) + rest, version=4))
