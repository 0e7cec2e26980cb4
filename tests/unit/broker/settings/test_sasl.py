"""The settings of SASL: whom a listener lets in, as whom the broker logs in, and what is refused without a secret in it (CLI-5)."""

from __future__ import annotations

import pytest

from broker.settings.config import ConfigError, is_secret
from broker.settings.config_layers import ConfigLayers
from broker.settings.config_sources import load
from broker.settings.sasl import BrokerSasl
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
            "sasl.enabled.mechanisms=PLAIN,OAUTHBEARER",
            (),
            "sasl.enabled.mechanisms: OAUTHBEARER is not supported",
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
