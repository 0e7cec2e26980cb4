"""The errors that a client is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from protocol.errors import ErrorCode, KafkaError


@contextmanager
def refused(code: ErrorCode, words: str = "") -> Iterator[None]:
    """What is done here raises the KafkaError of this code, whose message has these words."""
    with pytest.raises(KafkaError) as caught:
        yield
    assert caught.value.code is code
    assert words in caught.value.message
