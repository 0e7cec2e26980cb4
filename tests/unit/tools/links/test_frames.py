"""Frames come out of a stream as they went in, however it is cut."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kafka.framing import MalformedRequest
from tools.links.frames import LENGTH, Frame, Frames, framed


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(0, 100), st.data())
def test_frames_are_found_however_the_stream_is_cut(
    payloads: list[bytes], whole_from: int, data: st.DataObject
) -> None:
    stream = b"".join(framed(payload) for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    frames = Frames(100, whole_from)
    found: list[Frame] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += frames.feed(stream[start:end])
    assert found == [framed(payload) for payload in payloads]
    assert frames.is_between


def test_a_large_frame_is_not_copied_at_its_end() -> None:
    """That would be one long turn of the loop: each piece is joined when it comes."""
    size, piece = 32 * 1024 * 1024, 256 * 1024
    frames = Frames(size)
    *pieces, last = [bytes(piece) for _ in range(size // piece)]
    for each in (LENGTH.pack(size), *pieces):
        assert list(frames.feed(each)) == []
    tracemalloc.start()
    try:
        (frame,) = frames.feed(last)
        assert tracemalloc.get_traced_memory()[1] < 2 * piece
    finally:
        tracemalloc.stop()
    assert len(frame) == LENGTH.size + size


def test_half_a_frame_is_no_frame() -> None:
    frames = Frames(100)
    assert list(frames.feed(framed(b"whole") + framed(b"half")[:6])) == [framed(b"whole")]
    assert not frames.is_between


@pytest.mark.parametrize("length", [-1, 101, 2**31 - 1])
def test_an_impossible_length_is_an_error(length: int) -> None:
    with pytest.raises(MalformedRequest):
        list(Frames(100).feed(length.to_bytes(4, "big", signed=True)))
