"""Regular expressions that clients send, in RE2's syntax, as in Kafka: matching takes linear time, whatever the expression is. Pure."""

from __future__ import annotations

from typing import Any

import re2

from protocol.errors import ErrorCode, KafkaError


def compiled(text: str) -> Any:
    """With the methods of `re`'s patterns. Raises KafkaError(INVALID_REGULAR_EXPRESSION)."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as problem:
        words = problem.args[0].decode(errors="replace") if isinstance(problem.args[0], bytes) else problem.args[0]
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"{text!r} is no regular expression of RE2: {words}"
        ) from None
