"""The `ssl.` settings: what a listener gets from them, what is refused, and what is never shown."""

from __future__ import annotations

import errno
import os
import re
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.settings.config import BrokerConfig, ConfigError, is_secret
from broker.settings.config_layers import ConfigLayers, ConfigType
from broker.settings.config_sources import load
from broker.settings.tls import BrokerTls, ListenerTls
from tests.support.certificates import KEY_PASSWORD, Certificates, loaded_tls

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
    tls = loaded_tls("SSL", config(source(made)))
    assert tls.server_context.verify_mode is ssl.CERT_NONE
    assert tls.client_context.check_hostname
    if source is pkcs12:
        (trusted,) = tls.server_context.get_ca_certs()
        assert trusted["subject"] == ((("commonName", "authority"),),)


async def test_a_listener_has_settings_of_its_own(made: Certificates) -> None:
    settings = {
        **pem_files(made),
        **trusting(made),
        "listener.name.internal.ssl.client.auth": "required",
        "listener.name.internal.ssl.enabled.protocols": "TLSv1.3",
        "listener.name.internal.ssl.endpoint.identification.algorithm": "",
    }
    both = BrokerTls(config(settings), ["INTERNAL", "OUTSIDE"], lambda name: None)
    await both.load(config(settings))
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
    context = loaded_tls("SSL", config({**pem_files(made), "ssl.cipher.suites": suites})).server_context
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
        loaded_tls("SSL", config(settings))
    assert re.search(expected, str(raised.value)), str(raised.value)
    assert "WRONG-ONE" not in str(raised.value)
    assert "PRIVATE KEY-----\\n" not in str(raised.value)


def test_a_wrong_password_of_a_store_is_named_and_not_shown(made: Certificates) -> None:
    settings = {**pkcs12(made), "ssl.keystore.password": "WRONG-ONE"}
    with pytest.raises(
        ConfigError, match=r"ssl\.keystore\.password: .*broker\.p12: the password of the store is wrong"
    ) as it:
        loaded_tls("SSL", config(settings))
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
    tls = loaded_tls("SSL", config({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}))
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
    tls = loaded_tls("SSL", config({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}))
    file.write_bytes(made.strange().read_bytes())

    def none_left(_: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", none_left)
        assert not await tls.read_again()
        with pytest.raises(ConfigError, match=r"the settings cannot be tried now: .* Too many open files"):
            await tls.check(config({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}))
    assert "the earlier certificates of SSL stay for now: [Errno 24] Too many open files" in caplog.text
    assert await tls.read_again()


# -- settings that change while the broker serves ----------------------------------------------------------------------------

OWN = "listener.name.ssl.ssl."


@pytest.fixture(scope="module")
def places(made: Certificates, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files by the words that tables have for them."""
    directory = tmp_path_factory.mktemp("places")
    mixed, pipe = directory / "mixed.pem", directory / "pipe"
    mixed.write_text(made.broker.with_suffix(".key").read_text() + made.authority.read_text())
    os.mkfifo(pipe)
    with (directory / "large.pem").open("wb") as large:
        large.truncate(2**20 + 1)
    return {
        "NEXT": str(made.next_of_broker("next")),
        "SPELT": str(made.next_of_broker("spelt", "/CN=  BROKER ")),
        "WIDER": str(made.next_of_broker("wider", names="IP:127.0.0.1,DNS:kafka1")),
        "ANOTHER": str(made.next_of_broker("another", "/CN=other")),
        "NAMELESS": str(made.next_of_broker("nameless", names="DNS:kafka1")),
        "STRANGE": str(made.strange()),
        "AUTHORITY": str(made.authority),
        "STRANGER": str(made.stranger),
        "CLIENT": str(made.client),
        "MIXED": str(mixed),
        "STORE": str(made.pkcs12("next", PASSWORD)),
        "PIPE": str(pipe),
        "LARGE": str(directory / "large.pem"),
    }


def changed(made: Certificates, places: dict[str, str], change: dict[str, str], base: dict[str, str]) -> BrokerConfig:
    settings = {**pem_files(made), **base}
    return config({**settings, **{f"{OWN}{key}": places.get(value, value) for key, value in change.items()}})


@pytest.mark.parametrize(
    ("change", "is_of_brokers"),
    [
        ({"keystore.location": "NEXT"}, True),
        ({"keystore.location": "SPELT"}, True),
        ({"keystore.location": "WIDER"}, True),
        ({"keystore.location": "ANOTHER", "allow.dn.changes": "true"}, True),
        ({"keystore.location": "NAMELESS", "allow.san.changes": "true"}, True),
        ({"keystore.location": "STORE", "keystore.type": "PKCS12", "keystore.password": PASSWORD}, True),
        ({"truststore.location": "STRANGER"}, False),
    ],
)
async def test_settings_that_may_follow(
    made: Certificates, places: dict[str, str], change: dict[str, str], is_of_brokers: bool
) -> None:
    base = {**trusting(made), "ssl.client.auth": "required"}
    before = changed(made, places, {}, base)
    tls = ListenerTls("SSL", before, is_of_brokers=is_of_brokers)
    tls.load(before)
    first = tls.server_context
    wanted = changed(made, places, change, base)
    await tls.check(wanted)
    assert tls.server_context is first, "a check changes nothing"
    assert await tls.take(wanted)
    assert tls.server_context is not first
    assert not await tls.take(wanted), "the same settings, and the same files"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"keystore.location": "/no/such"}, "listener.name.ssl.ssl.keystore.location: /no/such: No such file"),
        ({"keystore.location": "AUTHORITY"}, "keystore.location: .* has no private key in PEM"),
        ({"keystore.location": "MIXED"}, "the private key is not that of the first certificate"),
        ({"keystore.location": "CLIENT"}, "ssl.key.password is missing, and the key is encrypted"),
        ({"keystore.location": "CLIENT", "key.password": "WRONG-ONE"}, "ssl.key.password is wrong"),
        ({"keystore.location": "STORE", "keystore.type": "PKCS12", "keystore.password": "WRONG-ONE"}, "keystore.password: .* wrong"),
        ({"keystore.location": "PIPE"}, "keystore.location: .*pipe: it is no file"),
        ({"keystore.location": "/tmp"}, "keystore.location: /tmp: it is no file"),
        ({"keystore.location": "LARGE"}, "keystore.location: .*large.pem has more than 1048576 bytes"),
        ({"keystore.type": "nonsense"}, "stores of type nonsense are not read"),
        ({"keystore.location": ""}, "has no certificate"),
        ({"keystore.location": "ANOTHER"}, "the subject of the certificate is CN=other, and that of the present one CN=broker; ssl"),
        ({"keystore.location": "NAMELESS"}, "lacks names of the present one: IPAddress 127.0.0.1; ssl.allow.san"),
        ({"truststore.location": "STRANGER"},
         "a broker with the present settings does not connect to one with these: certificate verify failed: self-signed"),
        ({"keystore.location": "STRANGE", "allow.dn.changes": "true", "allow.san.changes": "true"},
         "a broker with the present settings does not connect to one with these: certificate verify failed"),
        ({"truststore.location": "/no/such"}, "truststore.location: /no/such: No such file"),
    ],
)  # fmt: skip
async def test_settings_that_may_not_follow_are_refused_with_the_reason(
    made: Certificates, places: dict[str, str], change: dict[str, str], expected: str
) -> None:
    base = {**trusting(made), "ssl.client.auth": "required"}
    before = changed(made, places, {}, base)
    tls = ListenerTls("SSL", before, is_of_brokers=True)
    tls.load(before)
    with pytest.raises(ConfigError) as refused:
        await tls.check(changed(made, places, change, base))
    assert re.search(expected, str(refused.value)), str(refused.value)
    assert "WRONG-ONE" not in str(refused.value)


async def test_a_listener_without_a_truststore_gets_none(made: Certificates, places: dict[str, str]) -> None:
    """As in Kafka."""
    before = changed(made, places, {}, {})
    tls = loaded_tls("SSL", before)
    with pytest.raises(ConfigError, match="the listener has no truststore, and gets one by a restart only"):
        await tls.check(changed(made, places, {}, trusting(made)))


@pytest.mark.parametrize("wants", ["none", "required"])
async def test_a_listener_keeps_a_truststore(made: Certificates, places: dict[str, str], wants: str) -> None:
    """Without one, whoever has a certificate of any authority that the machine trusts could be `User:CN=admin`."""
    base = {**trusting(made), "ssl.client.auth": wants}
    tls = loaded_tls("SSL", changed(made, places, {}, base))
    with pytest.raises(
        ConfigError, match=r"listener\.name\.ssl\.ssl\.truststore\.location: .* is removed by a restart only"
    ):
        await tls.check(changed(made, places, {"truststore.location": ""}, base))


async def test_a_message_is_not_as_long_as_a_path(made: Certificates, places: dict[str, str]) -> None:
    before = changed(made, places, {}, {})
    with pytest.raises(ConfigError) as refused:
        await loaded_tls("SSL", before).check(changed(made, places, {"keystore.location": "/x" * 20_000}, {}))
    assert len(str(refused.value)) < 1_200


async def test_settings_that_cannot_be_used_leave_the_earlier_ones_until_the_file_is_there(
    made: Certificates, places: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = changed(made, places, {}, {})
    tls = loaded_tls("SSL", before)
    first, late = tls.server_context, tmp_path / "late.pem"
    wanted = changed(made, places, {"keystore.location": str(late)}, {})
    assert not await tls.take(wanted)
    assert not await tls.take(wanted)
    assert not await tls.read_again()
    assert tls.server_context is first
    assert caplog.text.count("the earlier certificates of SSL stay: ") == 1
    shutil.copy(places["NEXT"], late)
    assert await tls.read_again()
    assert tls.server_context is not first


async def test_whatever_a_path_names_no_descriptor_stays_open(made: Certificates, places: dict[str, str]) -> None:
    tls = loaded_tls("SSL", changed(made, places, {}, {}))
    before = len(os.listdir("/proc/self/fd"))
    for path in ("/tmp", "PIPE", "/dev/zero", "LARGE", "AUTHORITY", "/no/such"):
        with pytest.raises(ConfigError):
            await tls.check(changed(made, places, {"keystore.location": path}, {}))
    assert len(os.listdir("/proc/self/fd")) == before


async def test_only_the_listeners_of_the_changed_settings_are_checked(
    made: Certificates, places: dict[str, str]
) -> None:
    before = changed(made, places, {}, {})
    told: list[str] = []
    both = BrokerTls(before, ["SSL", "OUTSIDE"], told.append)
    await both.load(before)
    bad = changed(made, places, {"keystore.location": "/no/such"}, {})
    await both.check(bad, {"listener.name.outside.ssl.keystore.location", "listener.name.other.ssl.keystore.location"})
    with pytest.raises(ConfigError):
        await both.check(bad, {f"{OWN}keystore.location"})
    await both.take(changed(made, places, {"keystore.location": "NEXT"}, {}))
    assert told == ["SSL"]
