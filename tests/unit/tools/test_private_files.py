"""Files that a person names."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tools.private_files import write_output


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for text in ("a longer text", "ü"):
        write_output(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_and_stays(tmp_path: Path) -> None:
    """As /dev/null and /dev/stdout do, which root could replace."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text(encoding="utf-8")))
    reader.start()
    write_output(path, "ü")
    reader.join()
    assert read == ["ü"]
    assert path.is_fifo()
