"""Broken frames out of good ones: one mutator, for the tests with hypothesis, the fuzzer and live traffic."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import strategies as st

NASTY = (
    b"\x00",
    b"\xff",
    b"\x80",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x00\x00",
    b"\xff\xfe",
    b"\x7f\xff",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x01",
)
"""Lengths and counts that announce too much, nothing, or less than nothing."""

KINDS = ("cut", "extend", "overwrite", "random", "remove", "double", "flip", "add", "repeat", "other")
REPEATED_BYTES_MAX = 64 * 1024


def mutate(frame: bytes, random: Random, others: Sequence[bytes] = (), size_max: int = 1 << 30) -> bytes:
    """`frame` after one to four of: cut, extended, overwritten, a span removed, doubled or repeated often, a bit flipped,
    a length of one to four bytes raised or lowered, a span of one of `others` put in. At most `size_max` bytes."""
    data = bytearray(frame)
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(data))
        length = random.randint(0, 8)
        match random.choice(KINDS):
            case "cut":
                del data[at:]
            case "extend":
                data += bytes(random.randint(0, 255) for _ in range(length))
            case "overwrite":
                nasty = random.choice(NASTY)
                data[at : at + len(nasty)] = nasty
            case "random":
                data[at : at + length] = bytes(random.randint(0, 255) for _ in range(length))
            case "remove":
                del data[at : at + length]
            case "double":
                data[at:at] = data[at : at + length]
            case "flip" if at < len(data):
                data[at] ^= 1 << random.randint(0, 7)
            case "add" if at < len(data):
                width = random.choice((1, 2, 4))
                number = int.from_bytes(data[at : at + width], "big") + random.randint(-4, 4)
                data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "big")
            case "repeat":
                span = data[at : at + random.randint(1, 64)]
                room = min(size_max - len(data), REPEATED_BYTES_MAX)
                if span and room >= len(span):
                    data[at:at] = span * random.randint(1, min(room // len(span), 256))
            case "other" if others:
                other = random.choice(others)
                begin = random.randint(0, len(other))
                data[at : at + random.randint(0, 64)] = other[begin : begin + random.randint(1, 64)]
    return bytes(data[:size_max])


@st.composite
def mutated(draw: st.DrawFn, frame: bytes) -> bytes:
    """`frame` after `mutate`, in a way that hypothesis can make small."""
    return mutate(frame, draw(st.randoms(use_true_random=False)), size_max=len(frame) + 4096)
