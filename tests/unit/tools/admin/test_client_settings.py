"""`--command-config`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.admin.client_settings import read_command_config
from tools.failures import AdminError


def test_files(tmp_path: Path) -> None:
    assert read_command_config(None) == {}
    file = tmp_path / "client.properties"
    file.write_text("# mine\nclient.id=me\n")
    assert read_command_config(file) == {"client.id": "me"}
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(AdminError, match="not a text file"):
        read_command_config(file)
    with pytest.raises(AdminError, match="No such file"):
        read_command_config(tmp_path / "missing")
