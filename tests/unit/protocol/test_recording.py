"""The file of a recording: what was written is read, and of a file that is cut off or damaged all that comes before (RPL-5)."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import recording
from protocol.recording import FETCH, MEMBER, PRODUCE, Counts, Header, NotARecording, RecordingReader, header_frame
from protocol.recording import entries_frame as frame_of

HEADER = Header("r", 1, 1_700_000_000_000_000_000, 12.5)

numbers = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=20)
entries = st.one_of(
    st.tuples(st.just(PRODUCE), st.floats(0, 1e9), names, names, numbers, st.lists(names | numbers, max_size=10)),
    st.tuples(st.just(FETCH), st.floats(0, 1e9), names, names, numbers, numbers, numbers, st.lists(names | numbers)),
    st.tuples(st.just(MEMBER), st.floats(0, 1e9), names, names, names, st.lists(names)),
)
blocks = st.lists(st.tuples(st.integers(0, 2**31), st.lists(entries, max_size=5)), max_size=5)


def written(found: list[tuple[int, list[Any]]]) -> list[bytes]:
    return [header_frame(HEADER), *(frame_of(Counts(dropped, 0, 0), block) for dropped, block in found)]


def read(data: bytes) -> tuple[RecordingReader, list[list[Any]]]:
    reader = RecordingReader(io.BytesIO(data))
    return reader, list(reader.blocks())


def as_lists(block: list[Any]) -> list[Any]:
    return [list(entry) for entry in block]


@given(blocks)
def test_what_was_written_is_read(found: list[tuple[int, list[Any]]]) -> None:
    reader, back = read(b"".join(written(found)))
    assert (reader.header, reader.is_cut) == (HEADER, False)
    assert back == [as_lists(block) for _, block in found]
    assert reader.counts.dropped == (found[-1][0] if found else 0)


@pytest.mark.parametrize(("version", "is_read"), [(1, True), (2, True), (recording.VERSION + 1, False)])
def test_files_of_an_older_version_are_read_and_those_of_a_newer_one_are_refused(
    version: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(recording, "VERSION", version)
        file = header_frame(HEADER)
    if is_read:
        assert read(file)[0].header == HEADER
    else:
        with pytest.raises(NotARecording, match=r"a version \d recording"):
            read(file)


@given(blocks, st.data())
def test_a_file_that_is_cut_off_anywhere_has_its_whole_frames(
    found: list[tuple[int, list[Any]]], data: st.DataObject
) -> None:
    frames = written(found)
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    ends = [sum(map(len, frames[:number])) for number in range(1, len(frames) + 1)]
    if cut < ends[0]:
        with pytest.raises(NotARecording):
            read(whole[:cut])
        return
    reader, back = read(whole[:cut])
    assert back == [as_lists(block) for (_, block), end in zip(found, ends[1:], strict=True) if end <= cut]
    assert reader.is_cut is (cut not in ends)


@given(blocks, st.data())
def test_a_damaged_byte_is_never_read_as_an_entry(found: list[tuple[int, list[Any]]], data: st.DataObject) -> None:
    whole = bytearray(b"".join(written(found)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        _, back = read(bytes(whole))
    except NotARecording:
        return
    assert back == [as_lists(block) for _, block in found[: len(back)]]
