"""Each decoder on its seeds, its corpus and the inputs that did harm once: no harm. A cross-section; `make fuzz` goes further."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.fuzz import corpus, harm
from tests.fuzz.decoder import Decoder
from tests.fuzz.decoders import all_decoders
from tests.fuzz.mended import MENDED
from tests.support.thorough import thorough

DECODERS = all_decoders()
LOOKED_AT_CLOSELY = 3
"""The longest inputs of each decoder: their memory and lines are counted, too."""
SLOW_INPUTS = 40


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Decoders say thousands of times what is wrong with a file, and `turns` listens to the log by itself."""
    log = logging.getLogger("broker")
    level, handlers, propagate = log.level, log.handlers, log.propagate
    log.setLevel(logging.CRITICAL)
    yield
    log.handlers, log.propagate = handlers, propagate
    log.setLevel(level)


@pytest.mark.parametrize("decoder", [DECODERS[name] for name in DECODERS], ids=lambda decoder: decoder.name)
def test_no_harm(decoder: Decoder) -> None:
    inputs = [*MENDED.get(decoder.name, ()), *corpus.read(decoder.name), *decoder.seeds()]
    if decoder.is_slow:
        inputs = sorted(inputs, key=len)[:: max(1, len(inputs) // SLOW_INPUTS)]
    for data in inputs:
        found, _ = harm.of(decoder, data)
        assert found is None, f"{found}\n{data!r}"
    if decoder.is_slow:
        return
    for data in sorted(inputs, key=len)[-LOOKED_AT_CLOSELY:]:
        found = harm.too_large(decoder, data) or harm.too_long(decoder, data)
        assert found is None, f"{found}\n{data!r}"


@pytest.mark.parametrize("name", [thorough(name) if DECODERS[name].is_slow else name for name in MENDED])
def test_mended_inputs_do_no_harm(name: str) -> None:
    """The thorough run has those of slow decoders; `test_no_harm` takes some of them."""
    decoder = DECODERS[name]
    for data in MENDED[name]:
        found = harm.of(decoder, data)[0] or harm.too_large(decoder, data)
        found = found or (None if decoder.is_slow else harm.too_long(decoder, data))
        assert found is None, f"{found}\n{data!r}"
