"""Paths and contents of the znodes of delegation tokens, as Kafka has them in ZooKeeper mode (`DelegationTokenManagerZk`, KIP-48). Pure.

A token is a node below `/delegation_token/tokens`, which has no secret: the password follows from the token's id and the secret of the
brokers. A change is announced below `/delegation_token/token_changes`. Decoders raise ValueError with a reason.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from protocol.types import Principal
from protocol.zk.entity_names import desanitized, sanitized
from protocol.zk.operations import CreateOp

TOKENS: Final = "/delegation_token/tokens"
CHANGES: Final = "/delegation_token/token_changes"
CHANGE_PREFIX: Final = f"{CHANGES}/token_change_"
VERSION: Final = 3
TOKEN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class DelegationToken(NamedTuple):
    """Times are in ms since 1970. `renewers` may renew and expire the token, as its owner may."""

    id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    ends_ms: int
    """Not even a renewal makes it count longer."""
    expires_ms: int

    def is_of(self, principal: Principal) -> bool:
        """Whether the principal is the owner or a renewer."""
        return principal == self.owner or principal in self.renewers


def path_of(token_id: str) -> str:
    """The token's node."""
    return f"{TOKENS}/{token_id}"


def encode(token: DelegationToken) -> bytes:
    """The content of the token's node."""
    value = {
        "version": VERSION,
        "owner": sanitized(str(token.owner)),
        "tokenRequester": sanitized(str(token.requester)),
        "renewers": [sanitized(str(renewer)) for renewer in token.renewers],
        "issueTimestamp": token.issued_ms,
        "maxTimestamp": token.ends_ms,
        "expiryTimestamp": token.expires_ms,
        "tokenId": token.id,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode(token_id: str, data: bytes) -> DelegationToken:
    """The token of the node. Before version 3, the requester is the owner."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("no JSON") from None
    if not isinstance(value, dict) or value.get("version") not in (1, 2, VERSION):
        raise ValueError(f"no token of version 1 to {VERSION}")
    if value.get("tokenId") != token_id:
        raise ValueError("tokenId is not the name of the node")
    renewers = value.get("renewers")
    if not isinstance(renewers, list):
        raise ValueError("renewers must be a list")
    owner = _principal(value.get("owner"))
    return DelegationToken(
        token_id,
        owner,
        _principal(value.get("tokenRequester")) if value["version"] == VERSION else owner,
        tuple(map(_principal, renewers)),
        *(_time(value.get(name), name) for name in ("issueTimestamp", "maxTimestamp", "expiryTimestamp")),
    )


def announcement(token_id: str) -> CreateOp:
    """What tells all brokers that the token has changed."""
    return CreateOp(CHANGE_PREFIX, token_id.encode(), sequence=True)


def decode_change(data: bytes) -> str:
    """The id of the token that has changed."""
    found = data.decode("ascii", "replace")
    if not TOKEN_ID.fullmatch(found):
        raise ValueError("no id of a token")
    return found


def _principal(value: Any) -> Principal:
    kind, colon, name = desanitized(value).partition(":") if isinstance(value, str) else ("", "", "")
    if not (kind and colon):  # Kafka allows a renewer without a name
        raise ValueError("a principal must be TYPE:NAME")
    return Principal(kind, name)


def _time(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{name} must be a time in ms")
    return value
