"""Broken frames out of good ones, for the fuzz tests of decoders."""

from __future__ import annotations

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
)
"""Lengths and counts that announce too much, nothing, or less than nothing."""


@st.composite
def mutated(draw: st.DrawFn, frame: bytes) -> bytes:
    """`frame` after one to four of: cut, extended, overwritten, a span removed, a span doubled."""
    data = bytearray(frame)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 8))
        match draw(st.sampled_from(("cut", "extend", "overwrite", "random", "remove", "double"))):
            case "cut":
                del data[at:]
            case "extend":
                data += draw(st.binary(max_size=8))
            case "overwrite":
                nasty = draw(st.sampled_from(NASTY))
                data[at : at + len(nasty)] = nasty
            case "random":
                data[at : at + length] = draw(st.binary(min_size=length, max_size=length))
            case "remove":
                del data[at : at + length]
            case "double":
                data[at:at] = data[at : at + length]
    return bytes(data)
