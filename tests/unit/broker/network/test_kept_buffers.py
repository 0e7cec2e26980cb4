"""Which buffers are kept for the next large frames, and that no two frames share one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.network.kept_buffers import KEPT_FRAME_MAX, KEPT_S, KeptBuffers


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 5)), max_size=60))
def test_frames_that_are_in_use_never_share_a_buffer(steps: list[tuple[int, int]]) -> None:
    """Each step receives a frame and drops one of the frames in use. All kept buffers have at most `bytes_max` bytes."""
    kept = KeptBuffers(bytes_max=1000)
    used: list[tuple[memoryview, bytes]] = []
    for number, (size, dropped) in enumerate(steps):
        view = kept.take(size)
        if view is None:
            buffer = bytearray(size)
            kept.keep(buffer)
            view = memoryview(buffer)
        content = bytes([number]) * size
        assert len(view) == size
        view[:] = content
        used.append((view, content))
        del view
        if dropped < len(used):
            used.pop(dropped)
        assert kept.bytes <= 1000
        for seen, wanted in used:
            assert seen == wanted


def test_larger_frames_replace_smaller_free_buffers() -> None:
    kept = KeptBuffers(bytes_max=1000)
    for size in (400, 300, 300):
        kept.keep(bytearray(size))
    view = kept.take(300)
    kept.keep(bytearray(600))
    assert kept.bytes == 1000, "the buffer that is in use stays, and counts"
    assert kept.take(500) is not None
    del view
    kept.keep(bytearray(1001))
    assert kept.take(601) is None


def test_the_buffer_of_a_huge_frame_is_not_kept() -> None:
    kept = KeptBuffers()
    kept.keep(bytearray(KEPT_FRAME_MAX + 1))
    assert (kept.bytes, kept.take(1)) == (0, None)


def test_nothing_is_kept_after_a_time_without_large_frames() -> None:
    kept = KeptBuffers()
    view = kept.take(10)
    kept.keep(bytearray(10))
    kept.sweep(0.0)
    kept.sweep(KEPT_S)
    assert kept.bytes == 10
    view = kept.take(10)
    kept.sweep(KEPT_S + 1)
    kept.sweep(2 * KEPT_S + 2)
    assert kept.bytes == 10, "what is in use is counted"
    del view
    kept.sweep(2 * KEPT_S + 3)
    assert kept.bytes == 0
