"""Where the command `ottla` begins: it says what to install where only a broker was installed."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        import click  # noqa: F401 - what every command needs first
    except ModuleNotFoundError:
        sys.exit("ottla: the commands need more than a broker does: run `pip install 'ottla[tools]'`")
    from tools.cli import main as ottla

    ottla()
