"""The names of users, client ids and addresses in ZooKeeper, below `/config` (Kafka's `Sanitizer`). Pure."""

from __future__ import annotations

from urllib.parse import quote, unquote_plus

DEFAULT = "<default>"
"""The znode whose settings are those of all entities without their own."""


def sanitized(name: str) -> str:
    """The name of the znode: percent-encoded, with Java's choice of plain characters."""
    return quote(name, safe="").replace("~", "%7E")


def desanitized(node: str) -> str:
    """The name of a znode's entity. Raises ValueError if it is no text in UTF-8."""
    name = unquote_plus(node, errors="strict")
    name.encode()  # a node's JSON can have half of a surrogate pair
    return name
