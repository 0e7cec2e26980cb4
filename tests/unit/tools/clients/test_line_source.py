"""Lines from files, pipes and other streams are whole, however the bytes arrive."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.clients import line_source
from tools.clients.line_source import LineTooLong, lines_of


@given(st.lists(st.binary(max_size=5).filter(lambda line: b"\n" not in line)), st.integers(1, 7))
def test_lines_are_whole_wherever_they_are_cut(lines: list[bytes], size: int) -> None:
    text = b"".join(line + b"\n" for line in lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_source, "READ_BYTES", size)
        assert list(lines_of(io.BytesIO(text), 0)) == lines


@pytest.mark.parametrize(
    ("text", "lines"), [(b"", []), (b"a", [b"a"]), (b"a\n", [b"a"]), (b"\n\n", [b"", b""]), (b"a\r\nb", [b"a\r", b"b"])]
)
def test_the_last_line_may_lack_its_newline(text: bytes, lines: list[bytes], tmp_path: Path) -> None:
    assert list(lines_of(io.BytesIO(text), 0)) == lines
    (tmp_path / "file").write_bytes(text)
    with (tmp_path / "file").open("rb") as file:
        assert list(lines_of(file, 0)) == lines


def test_a_slow_pipe_yields_none_while_no_line_arrives() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stream, os.fdopen(writer, "wb", buffering=0) as pipe:
        lines = lines_of(stream, 0)
        assert next(lines) is None
        pipe.write(b"half")
        assert next(lines) is None
        pipe.write(b" and half\nnext")
        assert next(lines) == b"half and half"
        pipe.close()
        assert list(lines) == [b"next"]


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_source, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(line_source, "READ_BYTES", 30)
    lines = lines_of(io.BytesIO(b"short\n" + b"x" * 1000), 0)
    assert next(lines) == b"short"
    with pytest.raises(LineTooLong):
        next(lines)
