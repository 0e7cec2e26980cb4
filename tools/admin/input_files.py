"""JSON files as arguments of commands: a path, or `-` for standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.failures import AdminError

STDIN = "-"


def source_name(file: str) -> str:
    """The file's name in error messages."""
    return "standard input" if file == STDIN else file


def read_file(file: str) -> str:
    """The text of a file, or of standard input. Raises AdminError."""
    try:
        return sys.stdin.read() if file == STDIN else Path(file).read_text()
    except OSError as problem:
        raise AdminError(f"{file}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise AdminError(f"{source_name(file)}: not a text file") from None
