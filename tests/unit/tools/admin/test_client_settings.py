"""One `--command-config` for both clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.admin.client_settings import kafka_python_settings, read_command_config
from tools.failures import AdminError


def test_names_for_kafka_python() -> None:
    given = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "secret",
        "ssl.ca.location": "ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "socket.keepalive.enable": "true",
    }
    assert kafka_python_settings(given) == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": "secret",
        "ssl_cafile": "ca.pem",
        "ssl_check_hostname": False,
    }


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
