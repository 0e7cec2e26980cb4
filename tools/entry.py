"""Entry point of the command `ottla`. If only a broker's libraries are installed, it says what to install."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        import click  # noqa: F401 - what every command needs first
    except ModuleNotFoundError:
        sys.exit("ottla: the tools are not installed: run `pip install ottla`, with its dependencies")
    from tools.cli import main as ottla

    ottla()
