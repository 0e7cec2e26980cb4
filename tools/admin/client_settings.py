"""`--command-config`: a properties file of client settings."""

from __future__ import annotations

from pathlib import Path

from tools.failures import AdminError
from tools.properties_file import BadProperties, read_properties


def read_command_config(command_config: Path | None) -> dict[str, str]:
    """The client properties in the file; empty without a file. Raises AdminError if it cannot be read."""
    if command_config is None:
        return {}
    try:
        return {key: value for key, value, _ in read_properties(command_config.read_text())}
    except OSError as problem:
        raise AdminError(f"--command-config {command_config}: {problem.strerror}") from None
    except BadProperties as problem:
        raise AdminError(f"--command-config {command_config}: {problem}") from None
    except UnicodeDecodeError:
        raise AdminError(f"--command-config {command_config}: not a text file") from None
