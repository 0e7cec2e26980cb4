"""The settings of SASL: whom a listener lets in, as whom the broker logs in, and what is refused without a secret in it (CLI-5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.settings.bearer import KeySource, SignedTokens, UnsecuredTokens
from broker.settings.config import ConfigError, is_secret
from broker.settings.config_layers import ConfigLayers
from broker.settings.config_sources import load
from broker.settings.sasl import BrokerSasl
from protocol.bearer import claims_of
from protocol.sasl_login import ClientLogin

SECRET = "a-secret"
PLAIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="b" password="{SECRET}" user_alice="{SECRET}";'
SCRAM = PLAIN.replace("plain.Plain", "scram.Scram")


def sasl(text: str, of_brokers: tuple[str, ...] = ()) -> BrokerSasl:
    loaded = load(f"broker.id=1\nzookeeper.connect=z:1\nlog.dirs=/d\n{text}", "server.properties", {}, ())
    assert loaded.warnings == ()
    assert SECRET not in repr(loaded.config)
    assert SECRET not in repr(list(ConfigLayers(loaded.config, given=loaded.given).describe_broker()))
    return BrokerSasl(loaded.config, ("CLIENTS", "BROKERS"), of_brokers)


def test_a_prefix_counts_more() -> None:
    found = sasl(
        f"sasl.enabled.mechanisms=PLAIN\nplain.sasl.jaas.config={PLAIN}\nconnections.max.reauth.ms=1000\n"
        "listener.name.clients.sasl.enabled.mechanisms=SCRAM-SHA-512, PLAIN\n"
        "listener.name.clients.scram-sha-512.connections.max.reauth.ms=2000\n"
        "listener.name.clients.sasl.server.max.receive.size=99\n"
        "listener.name.clients.plain.sasl.jaas.config=" + PLAIN.replace("user_alice", "user_bob")
    )
    clients, brokers = found.of("CLIENTS"), found.of("BROKERS")
    assert clients is not None
    assert brokers is not None
    assert (clients.mechanisms, brokers.mechanisms) == (("SCRAM-SHA-512", "PLAIN"), ("PLAIN",))
    assert (clients.passwords, brokers.passwords) == ({"bob": SECRET}, {"alice": SECRET})
    assert [clients.lifetime_ms(one) for one in clients.mechanisms] == [2000, 1000]
    assert (clients.receive_bytes_max, brokers.receive_bytes_max) == (99, 524288)
    assert found.has_scram
    assert SECRET not in repr(clients)


def test_brokers_log_in() -> None:
    found = sasl(
        f"sasl.enabled.mechanisms=SCRAM-SHA-256\nsasl.mechanism.inter.broker.protocol=SCRAM-SHA-256\nscram-sha-256.sasl.jaas.config={SCRAM}",
        ("BROKERS",),
    )
    assert found.login_at("BROKERS") == ClientLogin("SCRAM-SHA-256", "b", SECRET)
    assert found.login_at("CLIENTS") is None
    assert SECRET not in repr(found.login_at("BROKERS"))


@pytest.mark.parametrize(
    ("text", "of_brokers", "part"),
    [
        ("", (), "sasl.enabled.mechanisms: GSSAPI is not supported: expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("sasl.enabled.mechanisms=", (), "sasl.enabled.mechanisms: nothing is not supported"),
        (
            "sasl.enabled.mechanisms=PLAIN,GSSAPI",
            (),
            "sasl.enabled.mechanisms: GSSAPI is not supported",
        ),
        ("sasl.enabled.mechanisms=PLAIN", (), "set listener.name.clients.plain.sasl.jaas.config="),
        (
            f"sasl.enabled.mechanisms=PLAIN\nplain.sasl.jaas.config={SCRAM}",
            (),
            "plain.sasl.jaas.config: the login module is not for PLAIN",
        ),
        (
            f"sasl.enabled.mechanisms=PLAIN\nplain.sasl.jaas.config={PLAIN[:-1]}",
            (),
            "plain.sasl.jaas.config: expected org.apache.kafka",
        ),
        ("sasl.enabled.mechanisms=SCRAM-SHA-256", ("BROKERS",), "sasl.mechanism.inter.broker.protocol=GSSAPI"),
        (
            "sasl.enabled.mechanisms=SCRAM-SHA-256\nsasl.mechanism.inter.broker.protocol=SCRAM-SHA-512",
            ("BROKERS",),
            "sasl.enabled.mechanisms of listener BROKERS does not have it",
        ),
        (
            "sasl.enabled.mechanisms=SCRAM-SHA-256\nsasl.mechanism.inter.broker.protocol=SCRAM-SHA-256",
            ("BROKERS",),
            "listener.name.brokers.scram-sha-256.sasl.jaas.config needs username and password",
        ),
    ],
)
def test_what_is_refused(text: str, of_brokers: tuple[str, ...], part: str) -> None:
    with pytest.raises(ConfigError) as raised:
        sasl(text, of_brokers)
    assert part in str(raised.value)
    assert SECRET not in str(raised.value)


def test_an_entry_without_a_mechanism_is_ignored_as_in_kafka() -> None:
    text = f"broker.id=1\nzookeeper.connect=z:1\nlog.dirs=/d\nsasl.jaas.config={PLAIN}"
    (warning,) = load(text, "server.properties", {}, ()).warnings
    assert "put the mechanism before it, as in plain.sasl.jaas.config" in warning
    assert SECRET not in warning


def test_entries_may_come_from_the_environment() -> None:
    environment = {"KAFKA_LISTENER_NAME_CLIENTS_SCRAM___SHA___256_SASL_JAAS_CONFIG": SCRAM}
    loaded = load("broker.id=1\nzookeeper.connect=z:1\nlog.dirs=/d", "server.properties", environment, ())
    assert list(loaded.config.jaas) == ["listener.name.clients.scram-sha-256.sasl.jaas.config"]
    assert all(is_secret(key) for key in loaded.config.jaas)


# -- OAUTHBEARER -------------------------------------------------------------------------------------------------------------

BEARER = "sasl.enabled.mechanisms=OAUTHBEARER\nsasl.mechanism.inter.broker.protocol=OAUTHBEARER\n"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
HANDLERS = "org.apache.kafka.common.security.oauthbearer"


def test_signed_and_unsecured_tokens() -> None:
    """A listener with keys takes no unsigned token unless its handler says so."""
    found = sasl(
        BEARER + "sasl.oauthbearer.jwks.endpoint.url=https://issuer/keys\nsasl.oauthbearer.expected.audience=a, b\n"
        f"listener.name.clients.oauthbearer.sasl.oauthbearer.clock.skew.seconds=1\n"
        f"listener.name.brokers.oauthbearer.sasl.server.callback.handler.class={HANDLERS}.internals.unsecured."
        "OAuthBearerUnsecuredValidatorCallbackHandler\n"
        f'listener.name.brokers.oauthbearer.sasl.jaas.config={MODULE} unsecuredValidatorRequiredScope="x y";\n'
    )
    clients, brokers = found.of("CLIENTS"), found.of("BROKERS")
    assert clients is not None
    assert brokers is not None
    source = KeySource("https://issuer/keys", 3_600_000, 100, 10_000)
    assert clients.tokens == SignedTokens(source, ("a", "b"), "", "sub", 1000)
    assert brokers.tokens == UnsecuredTokens(required_scope=("x", "y"))
    assert found.of("CLIENTS") is clients


def test_a_broker_logs_in_by_a_token_that_it_makes_or_reads(tmp_path: Path) -> None:
    made = f'oauthbearer.sasl.jaas.config={MODULE} unsecuredLoginStringClaim_sub="node" unsecuredLoginStringClaim_x="{SECRET}";'
    login = sasl(BEARER + made, ("BROKERS",)).login_at("BROKERS")
    assert login is not None
    assert login.token is not None
    assert (login.mechanism, login.username) == ("OAUTHBEARER", "node")
    assert claims_of(login.token())["x"] == SECRET
    assert SECRET not in repr(login)
    file = tmp_path / "token"
    file.write_text(login.token() + "\n")
    login = sasl(BEARER + f"sasl.oauthbearer.token.endpoint.url={file.as_uri()}", ("BROKERS",)).login_at("BROKERS")
    assert login is not None
    assert login.token is not None
    assert (login.username, claims_of(login.token())["x"]) == ("node", SECRET)
    file.write_text("another")
    assert login.token() == "another"


@pytest.mark.parametrize(
    ("text", "of_brokers", "part"),
    [
        (f"oauthbearer.sasl.server.callback.handler.class={HANDLERS}.OAuthBearerValidatorCallbackHandler", (), "jwks.endpoint.url is m"),
        ("oauthbearer.sasl.server.callback.handler.class=com.example.Mine", (), "com.example.Mine is not supported: expected OAuthBearerV"),
        ("sasl.oauthbearer.jwks.endpoint.url=ftp://x/y", (), "ftp://x/y: expected file:///... or http://... or https://..."),
        ("sasl.oauthbearer.jwks.endpoint.url=http://", (), "http://: expected file:///"),
        (f'oauthbearer.sasl.jaas.config={MODULE} unsecuredValidatorAllowableClockSkewMs="-1";', (), "is less than 0"),
        (f"oauthbearer.sasl.jaas.config={PLAIN}", (), "the login module is not for OAUTHBEARER"),
        ("", ("BROKERS",), "brokers.oauthbearer.sasl.jaas.config: it names nobody: set unsecuredLoginStringClaim_sub"),
        ("sasl.oauthbearer.token.endpoint.url=https://x/y", ("BROKERS",), "https://x/y: expected file:///..."),
        ("sasl.oauthbearer.token.endpoint.url=file:///no/such/file", ("BROKERS",), "No such file"),
    ],
)  # fmt: skip
def test_tokens_that_cannot_be_used(text: str, of_brokers: tuple[str, ...], part: str) -> None:
    with pytest.raises(ConfigError) as raised:
        sasl(BEARER + text, of_brokers)
    assert part in str(raised.value)
