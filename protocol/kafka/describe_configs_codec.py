"""The response of DescribeConfigs (API 32), v1 to v4, hand-written, setting by setting. Pure.

    throttle time, results: error, message, resource type, resource name,
             settings: name, value, read only, source, sensitive, synonyms: name, value, source; [v3: type, documentation]

v4 is flexible. Thousands of topics have nearly the same settings, so callers cache the bytes of a setting. `tests/unit/protocol/kafka`
compares the result with kio byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from protocol.kafka.wire import INT, SHORT, array_length, nullable_string, string

TYPES_SINCE = 3
FLEXIBLE_SINCE = 4

_BYTE = struct.Struct(">b")
_FLAGS = struct.Struct(">?b?")

Synonym = tuple[str, str | None, int]
"""(name, value, source)"""


def encode_setting(
    version: int,
    name: str,
    value: str | None,
    *,
    is_read_only: bool,
    is_sensitive: bool,
    source: int,
    synonyms: Iterable[Synonym],
    config_type: int,
    documentation: str | None,
) -> bytes:
    """One setting. The value of a sensitive one is None."""
    flexible = version >= FLEXIBLE_SINCE
    end = b"\x00" if flexible else b""
    rows = [
        string(other, flexible) + nullable_string(text, flexible) + _BYTE.pack(layer) + end
        for other, text, layer in synonyms
    ]
    types = b""
    if version >= TYPES_SINCE:
        types = _BYTE.pack(config_type) + nullable_string(documentation, flexible)
    head = string(name, flexible) + nullable_string(value, flexible) + _FLAGS.pack(is_read_only, source, is_sensitive)
    return b"".join((head, array_length(len(rows), flexible), *rows, types, end))


def encode_result(
    version: int, error: int, message: str | None, kind: int, name: str, settings: Sequence[bytes]
) -> bytes:
    """One resource; `kind` is its type."""
    flexible = version >= FLEXIBLE_SINCE
    head = SHORT.pack(error) + nullable_string(message, flexible) + _BYTE.pack(kind) + string(name, flexible)
    return b"".join((head, array_length(len(settings), flexible), *settings, b"\x00" if flexible else b""))


def encode_response(version: int, results: Sequence[bytes], throttle_ms: int = 0) -> bytes:
    """The response body."""
    flexible = version >= FLEXIBLE_SINCE
    head = INT.pack(throttle_ms) + array_length(len(results), flexible)
    return b"".join((head, *results, b"\x00" if flexible else b""))
