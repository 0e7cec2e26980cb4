"""The `ssl.` settings: what a listener gets from them, what is refused, and what is never shown."""

from __future__ import annotations

import errno
import os
import re
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.settings.config import BrokerConfig, ConfigError, is_secret
from broker.settings.config_layers import ConfigLayers, ConfigType
from broker.settings.config_sources import load
from broker.settings.tls import BrokerTls, ListenerTls
from tests.support.certificates import KEY_PASSWORD, Certificates

PASSWORD = "opens-the-store"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def config(settings: dict[str, str]) -> BrokerConfig:
    text = "broker.id=1\nzookeeper.connect=z:1\nlog.dirs=/d\n" + "".join(
        f"{key}={value}\n" for key, value in settings.items()
    )
    loaded = load(text, "server.properties", {}, ())
    assert loaded.warnings == ()
    return loaded.config


def in_one_line(pem: str) -> str:
    return pem.replace("\n", " ")


def pem_files(made: Certificates) -> dict[str, str]:
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(made.broker)}


def trusting(made: Certificates) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(made.authority)}


def inline(made: Certificates) -> dict[str, str]:
    key, _, certificate = made.broker.read_text().partition("-----BEGIN CERTIFICATE-----")
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": in_one_line(key),
        "ssl.keystore.certificate.chain": in_one_line(f"-----BEGIN CERTIFICATE-----{certificate}"),
    }


def encrypted_key(made: Certificates) -> dict[str, str]:
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(made.client), "ssl.key.password": KEY_PASSWORD}


def pkcs12(made: Certificates) -> dict[str, str]:
    pytest.importorskip("cryptography")
    return {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(made.pkcs12("broker", PASSWORD)),
        "ssl.keystore.password": PASSWORD,
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(made.trusted_pkcs12(PASSWORD)),
        "ssl.truststore.password": PASSWORD,
    }


@pytest.mark.parametrize("source", [pem_files, inline, encrypted_key, pkcs12])
def test_a_certificate_is_read(made: Certificates, source: Callable[[Certificates], dict[str, str]]) -> None:
    tls = ListenerTls("SSL", config(source(made)))
    assert tls.server_context.verify_mode is ssl.CERT_NONE
    assert tls.client_context.check_hostname
    if source is pkcs12:
        (trusted,) = tls.server_context.get_ca_certs()
        assert trusted["subject"] == ((("commonName", "authority"),),)


def test_a_listener_has_settings_of_its_own(made: Certificates) -> None:
    settings = {
        **pem_files(made),
        **trusting(made),
        "listener.name.internal.ssl.client.auth": "required",
        "listener.name.internal.ssl.enabled.protocols": "TLSv1.3",
        "listener.name.internal.ssl.endpoint.identification.algorithm": "",
    }
    both = BrokerTls(config(settings), ["INTERNAL", "OUTSIDE"], lambda name: None)
    inner, outer = both.of("INTERNAL"), both.of("OUTSIDE")
    assert inner is not None
    assert outer is not None
    assert both.of("PLAINTEXT") is None
    assert (inner.server_context.verify_mode, outer.server_context.verify_mode) == (ssl.CERT_REQUIRED, ssl.CERT_NONE)
    assert inner.server_context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert outer.server_context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert not inner.client_context.check_hostname
    assert [both.wants_certificates(name) for name in ("INTERNAL", "OUTSIDE", "PLAINTEXT")] == [True, False, False]


@pytest.mark.parametrize(
    ("suites", "expected"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", {"ECDHE-RSA-AES128-GCM-SHA256"}),
        ("ECDHE-RSA-AES256-GCM-SHA384", {"ECDHE-RSA-AES256-GCM-SHA384"}),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", {"ECDHE-RSA-CHACHA20-POLY1305"}),
    ],
)
def test_cipher_suites(made: Certificates, suites: str, expected: set[str]) -> None:
    context = ListenerTls("SSL", config({**pem_files(made), "ssl.cipher.suites": suites})).server_context
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    assert {found["name"] for found in context.get_ciphers() if found["protocol"] != "TLSv1.3"} == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ssl.keystore.location": ""}, "listener SSL is SSL and has no certificate"),
        ({"ssl.keystore.location": "/no/such"}, "ssl.keystore.location: /no/such: No such file"),
        ({"ssl.keystore.location": "AUTHORITY"}, "ssl.keystore.location: .*authority.crt has no private key in PEM"),
        ({"ssl.keystore.location": "KEY"}, "ssl.keystore.location: .*broker.key has no certificate in PEM"),
        ({"ssl.keystore.location": "CLIENT"}, "client.pem: ssl.key.password is missing, and the key is encrypted"),
        ({"ssl.keystore.location": "CLIENT", "ssl.key.password": "WRONG-ONE"}, "client.pem: ssl.key.password is wrong"),
        ({"ssl.keystore.location": "MIXED"}, "the private key is not that of the first certificate"),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.type: stores of type JKS are not read"),
        ({"ssl.keystore.type": "PKCS12"}, "ssl.keystore.location: .*broker.pem: it is no store of type PKCS12"),
        ({"ssl.keystore.password": "WRONG-ONE"}, "ssl.keystore.password: a PEM file has no password"),
        ({"ssl.keystore.key": "WRONG-ONE"}, "ssl.keystore.key: ssl.keystore.location is set, too"),
        ({"ssl.truststore.type": "PEM", "ssl.truststore.location": "KEY"}, "ssl.truststore.location: .* has no certificate"),
        ({"ssl.truststore.location": "/t.jks"}, "ssl.truststore.type: stores of type JKS are not read"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols='TLSv1.1': expected one of TLSv1.2, TLSv1.3"),
        ({"ssl.enabled.protocols": ","}, "ssl.enabled.protocols: empty"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_NULL_SHA"}, "ssl.cipher.suites: the cipher suite NULL-SHA is not known"),
        ({"ssl.cipher.suites": "ALL:@SECLEVEL=0"}, "ssl.cipher.suites: .* is no name of a cipher suite"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "of the suites of TLSv1.3, either all or none"),
        ({"ssl.client.auth": "maybe"}, "ssl.client.auth='maybe': expected one of none, requested, required"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "'ldaps': expected https, or nothing"),
        ({"listener.name.ssl.ssl.keystore.location": "/no"}, "listener.name.ssl.ssl.keystore.location: /no: No such file"),
        ({"listener.name.ssl.ssl.client.auth": "x"}, "server.properties:6: listener.name.ssl.ssl.client.auth='x'"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_with_their_key_and_the_reason(
    made: Certificates, tmp_path: Path, change: dict[str, str], expected: str
) -> None:
    mixed = tmp_path / "mixed.pem"
    mixed.write_text(made.broker.with_suffix(".key").read_text() + made.authority.read_text())
    places = {
        "AUTHORITY": str(made.authority),
        "KEY": str(made.broker.with_suffix(".key")),
        "CLIENT": str(made.client),
        "MIXED": str(mixed),
    }
    settings = {**pem_files(made), **{key: places.get(value, value) for key, value in change.items()}}
    with pytest.raises(ConfigError) as raised:
        ListenerTls("SSL", config(settings))
    assert re.search(expected, str(raised.value)), str(raised.value)
    assert "WRONG-ONE" not in str(raised.value)
    assert "PRIVATE KEY-----\\n" not in str(raised.value)


def test_a_wrong_password_of_a_store_is_named_and_not_shown(made: Certificates) -> None:
    settings = {**pkcs12(made), "ssl.keystore.password": "WRONG-ONE"}
    with pytest.raises(
        ConfigError, match=r"ssl\.keystore\.password: .*broker\.p12: the password of the store is wrong"
    ) as it:
        ListenerTls("SSL", config(settings))
    assert "WRONG-ONE" not in str(it.value)


def test_secrets_are_described_without_their_values(made: Certificates) -> None:
    given = {**inline(made), "ssl.key.password": PASSWORD, "ssl.truststore.password": PASSWORD}
    static = config({**given, "listener.name.ssl.ssl.key.password": PASSWORD})
    rows = {row.name: row for row in ConfigLayers(static, given=given).describe_broker()}
    shown = [row for row in rows.values() if row.is_sensitive]
    assert {row.name for row in shown} == {key for key in rows if is_secret(key)}
    assert {row.value for row in shown} == {None}
    assert {row.config_type for row in shown} == {ConfigType.PASSWORD}
    assert {synonym.value for row in shown for synonym in row.synonyms} == {None}
    assert PASSWORD not in repr((rows, static))
    assert "PRIVATE" not in repr((rows, static))


async def test_a_changed_file_is_read_again_and_a_broken_one_is_not_taken(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "own.pem"
    file.write_bytes(made.broker.read_bytes())
    tls = ListenerTls("SSL", config({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}))
    first = tls.server_context
    assert not await tls.read_again()
    assert tls.server_context is first
    file.write_text("half a fi")
    assert not await tls.read_again()
    assert not await tls.read_again()
    assert tls.server_context is first
    assert caplog.text.count("the earlier certificates of SSL stay") == 1
    file.write_bytes(made.strange().read_bytes())
    assert await tls.read_again()
    assert tls.server_context is not first


async def test_a_lack_of_descriptors_ends_nothing_and_is_tried_again(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.pem"
    file.write_bytes(made.broker.read_bytes())
    tls = ListenerTls("SSL", config({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}))
    file.write_bytes(made.strange().read_bytes())

    def none_left(_: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", none_left)
        assert not await tls.read_again()
    assert "the earlier certificates of SSL stay for now: [Errno 24] Too many open files" in caplog.text
    assert await tls.read_again()
