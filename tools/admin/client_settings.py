"""`--command-config`: a properties file of client settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.failures import AdminError
from tools.properties_file import BadProperties, read_properties
from tools.wire.client_properties import KNOWN, BadClientProperties, read_security

ONLY_JAVA = frozenset(
    {
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.keystore.type",
        "ssl.keystore.certificate.chain",
        "sasl.jaas.config",
        "sasl.login.callback.handler.class",
        "sasl.oauthbearer.token.endpoint.url",
    }
)
"""Names that librdkafka does not know, or refuses, or for whose values it needs more."""


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


def read_librdkafka_config(command_config: Path | None) -> dict[str, Any]:
    """The file's properties for confluent-kafka. Those of Java that say how to connect get librdkafka's names. Raises AdminError."""
    properties = read_command_config(command_config)
    if ONLY_JAVA.isdisjoint(properties):
        return properties
    try:
        security = read_security(command_config, ignores_others=True)
    except BadClientProperties as problem:
        raise AdminError(str(problem)) from None
    others = {key: value for key, value in properties.items() if key not in KNOWN}
    return {**others, **security.librdkafka_properties()}
