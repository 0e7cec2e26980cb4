"""`--command-config`: one properties file for two client libraries.

confluent-kafka gets all of it. kafka-python gets the keys below, under its own names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tools.failures import AdminError
from tools.properties_file import BadProperties, read_properties

KAFKA_PYTHON_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "client.id": "client_id",
        "sasl.mechanism": "sasl_mechanism",
        "sasl.mechanisms": "sasl_mechanism",
        "sasl.password": "sasl_plain_password",
        "sasl.username": "sasl_plain_username",
        "security.protocol": "security_protocol",
        "ssl.ca.location": "ssl_cafile",
        "ssl.certificate.location": "ssl_certfile",
        "ssl.crl.location": "ssl_crlfile",
        "ssl.key.location": "ssl_keyfile",
        "ssl.key.password": "ssl_password",
    }
)
HOSTNAME_CHECK = "ssl.endpoint.identification.algorithm"


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


def kafka_python_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    """The properties of KAFKA_PYTHON_NAMES under kafka-python's names, and the hostname check. All others are ignored."""
    settings: dict[str, Any] = {
        KAFKA_PYTHON_NAMES[key]: value for key, value in properties.items() if key in KAFKA_PYTHON_NAMES
    }
    if properties.get(HOSTNAME_CHECK) == "none":
        settings["ssl_check_hostname"] = False
    if "security_protocol" in settings:
        settings["security_protocol"] = settings["security_protocol"].upper()
    return settings
