"""All decoders, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from tests.fuzz.decoder import Decoder

MODULES = (
    "frames",
    "requests",
    "answers",
    "batches",
    "groups",
    "transactions",
    "control",
    "znodes",
    "storage",
    "configs",
    "inputs",
    "turns",
)


def all_decoders(modules: Sequence[str] = MODULES) -> Mapping[str, Decoder]:
    found: dict[str, Decoder] = {}
    for name in modules:
        make: Callable[[], Sequence[Decoder]] = import_module(f"{__name__}.{name}").decoders
        for decoder in make():
            assert decoder.name not in found, decoder.name
            found[decoder.name] = decoder
    return found
