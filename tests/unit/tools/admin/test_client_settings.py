"""`--command-config` for the commands that use confluent-kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.certificates import KEY_PASSWORD, Certificates
from tools.admin.client_settings import read_librdkafka_config
from tools.failures import AdminError


def test_a_file_for_java_gets_the_names_of_librdkafka(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    file = tmp_path / "client.properties"
    file.write_text(
        f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={certificates.authority}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={certificates.client}\nssl.key.password={KEY_PASSWORD}\nclient.id=me\n"
    )
    settings = read_librdkafka_config(file)
    assert settings["client.id"] == "me"
    assert settings["ssl.ca.pem"] == certificates.authority.read_text()
    Producer(settings)  # it knows all of them


def test_a_file_for_librdkafka_is_given_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=ssl\nssl.ca.location=authority.pem\nssl.crl.location=revoked.pem\n")
    assert read_librdkafka_config(file) == {
        "security.protocol": "ssl",
        "ssl.ca.location": "authority.pem",
        "ssl.crl.location": "revoked.pem",
    }


def test_a_store_that_is_not_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\nssl.truststore.location=trusted.jks\nssl.truststore.type=JKS\n")
    with pytest.raises(AdminError, match=r"line 3: ssl\.truststore\.type"):
        read_librdkafka_config(file)
