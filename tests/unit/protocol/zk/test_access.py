"""Kafka's settings of the way to ZooKeeper: what is read, what follows from a file's name, what is refused with the reason."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from protocol.zk.access import ANONYMOUS, NETTY, NIO, BadAccess, zookeeper_access
from protocol.zk.protection import ZooKeeperLogin
from tests.support.certificates import KEY_PASSWORD, Certificates

PASSWORD = "opens-the-store"
ENABLED = {"zookeeper.ssl.client.enable": "true", "zookeeper.clientCnxnSocket": NETTY}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def tls(settings: dict[str, str]) -> ssl.SSLContext:
    found = zookeeper_access({**ENABLED, **{f"zookeeper.ssl.{key}": value for key, value in settings.items()}}).tls
    assert found is not None
    return found.client_context


def test_without_tls_nothing_is_read() -> None:
    assert zookeeper_access({}) == ANONYMOUS
    ignored = {"zookeeper.ssl.keystore.location": "/no/such.jks", "zookeeper.ssl.crl.enable": "true", "other": "x"}
    assert zookeeper_access({**ignored, "zookeeper.clientCnxnSocket": NIO}) == ANONYMOUS


def test_kafkas_defaults(made: Certificates) -> None:
    context = tls({"truststore.location": str(made.authority), "truststore.type": "PEM"})
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)


@pytest.mark.parametrize(
    ("settings", "lowest", "highest"),
    [
        ({"protocol": "TLSv1.3"}, ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3),
        ({"protocol": "TLSv1.3", "enabled.protocols": "TLSv1.2"}, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
        ({"enabled.protocols": "TLSv1.3,TLSv1.2"}, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3),
    ],
)
def test_protocols(settings: dict[str, str], lowest: ssl.TLSVersion, highest: ssl.TLSVersion) -> None:
    context = tls({**settings, "endpoint.identification.algorithm": ""})
    assert (context.minimum_version, context.maximum_version) == (lowest, highest)
    assert not context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_cipher_suites() -> None:
    context = tls({"cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"})
    found = {suite["name"] for suite in context.get_ciphers() if suite["protocol"] != "TLSv1.3"}
    assert found == {"ECDHE-RSA-AES128-GCM-SHA256"}


def test_the_type_of_a_store_follows_from_its_name_and_its_password_is_that_of_the_key(made: Certificates) -> None:
    """As in ZooKeeper's client; a password of a truststore in PEM is not needed."""
    tls({"keystore.location": str(made.client), "keystore.password": KEY_PASSWORD})
    tls({"keystore.location": str(made.broker)})
    pytest.importorskip("cryptography")
    stores = {
        "keystore.location": str(made.pkcs12("broker", PASSWORD)),
        "keystore.password": PASSWORD,
        "truststore.location": str(made.trusted_pkcs12(PASSWORD)),
        "truststore.password": PASSWORD,
    }
    (trusted,) = tls(stores).get_ca_certs()
    assert trusted["subject"] == ((("commonName", "authority"),),)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"keystore.location": "/k.jks"}, "zookeeper.ssl.keystore.type: stores of type JKS are not read, only PEM and PKCS12"),
        ({"truststore.location": "/t.bcfks"}, "zookeeper.ssl.truststore.type: stores of type BCFKS are not read"),
        ({"keystore.location": "/k"}, "zookeeper.ssl.keystore.type: it is not set, and the name of the file does not say"),
        ({"keystore.location": "/no/such.pem"}, "zookeeper.ssl.keystore.location: /no/such.pem: No such file"),
        ({"keystore.location": "AUTHORITY", "keystore.type": "PEM"}, "zookeeper.ssl.keystore.location: .* has no private key in PEM"),
        ({"keystore.location": "CLIENT"}, "zookeeper.ssl.keystore.password is missing, and the key is encrypted"),
        ({"keystore.location": "CLIENT", "keystore.password": "WRONG-ONE"}, "zookeeper.ssl.keystore.password is wrong"),
        ({"keystore.location": "STORE", "keystore.password": "WRONG-ONE"}, "zookeeper.ssl.keystore.password: .*: the password of"),
        ({"protocol": "TLSv1"}, "zookeeper.ssl.protocol: 'TLSv1': expected TLSv1.2, TLSv1.3, or both"),
        ({"enabled.protocols": "SSLv3"}, "zookeeper.ssl.enabled.protocols: 'SSLv3': expected"),
        ({"cipher.suites": "TLS_RSA_WITH_NULL_SHA"}, "zookeeper.ssl.cipher.suites: the cipher suite NULL-SHA is not known"),
        ({"endpoint.identification.algorithm": "ldaps"}, "zookeeper.ssl.endpoint.identification.algorithm: 'ldaps': expected https"),
        ({"crl.enable": "true"}, "zookeeper.ssl.crl.enable=true: nobody would check"),
        ({"ocsp.enable": "TRUE"}, "zookeeper.ssl.ocsp.enable=true: nobody would check"),
        ({"client.enable": "yes"}, "zookeeper.ssl.client.enable='yes': expected true or false"),
    ],
)  # fmt: skip
def test_what_is_refused(made: Certificates, change: dict[str, str], expected: str) -> None:
    places = {"AUTHORITY": made.authority, "CLIENT": made.client}
    if "STORE" in change.values():
        pytest.importorskip("cryptography")
        places["STORE"] = made.pkcs12("broker", PASSWORD)
    with pytest.raises(BadAccess, match=expected) as refused:
        tls({key: str(places.get(value, value)) for key, value in change.items()})
    assert "WRONG-ONE" not in str(refused.value)


@pytest.mark.parametrize("socket", [NIO, "org.example.Socket"])
def test_kafka_needs_netty_for_tls(socket: str) -> None:
    with pytest.raises(BadAccess, match=f"zookeeper.clientCnxnSocket='{socket}': expected {NETTY}"):
        zookeeper_access({**ENABLED, "zookeeper.clientCnxnSocket": socket})


def test_a_login_by_sasl() -> None:
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    jaas = f'{module} required username="kafka" password="WRONG-ONE";'
    found = zookeeper_access({"zookeeper.set.acl": "true", "zookeeper.sasl.jaas.config": jaas})
    assert found.sasl == ZooKeeperLogin("kafka", "WRONG-ONE")
    assert found.protects
    for wrong, expected in (
        ("x.PlainLoginModule required username=a password=b;", "login module x.PlainLoginModule is not supported; DigestLoginModule is"),
        (f"{module} required username=a;", f"it needs username and password: {module}"),
        (f'{module} required username="a" password=WRONG-ONE', f"expected {module}"),
    ):  # fmt: skip
        with pytest.raises(BadAccess, match=f"zookeeper.sasl.jaas.config: {expected}") as refused:
            zookeeper_access({"zookeeper.sasl.jaas.config": wrong})
        assert "WRONG-ONE" not in str(refused.value)


def test_nodes_need_an_owner(made: Certificates, tmp_path: Path) -> None:
    owned = {"zookeeper.set.acl": "true"}
    for settings in ({}, ENABLED):
        with pytest.raises(
            BadAccess, match=r"zookeeper.set.acl=true: nobody would own .*zookeeper.ssl.keystore.location"
        ):
            zookeeper_access({**owned, **settings})
    assert zookeeper_access({**owned, **ENABLED, "zookeeper.ssl.keystore.location": str(made.broker)}).protects
    by_password = zookeeper_access({**owned, "zookeeper.digest.user": "a", "zookeeper.digest.password": "b"})
    assert by_password.login == ZooKeeperLogin("a", "b")
    assert "'b'" not in repr(by_password)
