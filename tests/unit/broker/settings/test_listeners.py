"""listeners, advertised.listeners, and who uses which."""

from __future__ import annotations

from typing import Any

import pytest

from broker.settings.config import BrokerConfig, ConfigError
from broker.settings.listeners import Listeners, listeners_of


def listeners(**settings: Any) -> Listeners:
    return listeners_of(BrokerConfig(broker_id=1, zookeeper_connect="z:1", **settings))


def shown(listeners: Listeners) -> tuple[list[str], list[str]]:
    return [str(e) for e in listeners.bound.values()], [str(e) for e in listeners.advertised.values()]


def test_one_listener_gets_a_control_listener_on_a_free_port() -> None:
    made = listeners(listeners="PLAINTEXT://127.0.0.1:9092")
    assert shown(made) == (["PLAINTEXT://127.0.0.1:9092", "CONTROLLER://127.0.0.1:0"],) * 2
    assert (made.inter_broker, made.control_plane, made.client_names) == ("PLAINTEXT", "CONTROLLER", ("PLAINTEXT",))
    bound = made.with_ports({"PLAINTEXT": 9092, "CONTROLLER": 12345})
    assert shown(bound) == (["PLAINTEXT://127.0.0.1:9092", "CONTROLLER://127.0.0.1:12345"],) * 2


def test_all_roles() -> None:
    made = listeners(
        listeners="INTERNAL://0.0.0.0:19091,HOST://0.0.0.0:9092,CONTROLLER://0.0.0.0:18091",
        advertised_listeners="INTERNAL://kafka1:19091,HOST://localhost:9092,CONTROLLER://kafka1:18091",
        listener_security_protocol_map="INTERNAL:PLAINTEXT,HOST:PLAINTEXT,CONTROLLER:PLAINTEXT",
        inter_broker_listener_name="INTERNAL",
        control_plane_listener_name="CONTROLLER",
    )
    assert made.inter_broker == "INTERNAL"
    assert made.client_names == ("INTERNAL", "HOST")
    assert str(made.advertised["CONTROLLER"]) == "CONTROLLER://kafka1:18091"


def test_an_automatic_control_listener_uses_the_host_of_the_inter_broker_listener() -> None:
    hosts = "PLAINTEXT://0.0.0.0:9092,INTERNAL://10.0.0.5:9093"
    settings = {"listeners": hosts, "listener_security_protocol_map": "INTERNAL:PLAINTEXT"}
    private = listeners(
        **settings, inter_broker_listener_name="INTERNAL", advertised_listeners="INTERNAL://kafka1:9093"
    )
    assert str(private.bound["CONTROLLER"]) == "CONTROLLER://10.0.0.5:0"
    assert str(private.advertised["CONTROLLER"]) == "CONTROLLER://kafka1:0"
    assert not private.is_control_open
    assert listeners(**settings).is_control_open, "the brokers share PLAINTEXT then"
    made = listeners(listeners="PLAINTEXT://0.0.0.0:9092", advertised_listeners="PLAINTEXT://kafka1:9092")
    assert str(made.advertised["CONTROLLER"]) == "CONTROLLER://kafka1:0"
    assert made.bound["CONTROLLER"].host == "0.0.0.0"


def protocols(made: Listeners) -> dict[str, str]:
    assert {n: e.security_protocol for n, e in made.advertised.items()} == {
        n: e.security_protocol for n, e in made.bound.items()
    }
    return {name: "TLS" if made.uses_tls(name) else "clear" for name in made.bound}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"listeners": "SSL://h:1"}, {"SSL": "TLS", "CONTROLLER": "TLS"}),
        ({"listeners": "PLAINTEXT://h:1,SSL://h:2"}, {"PLAINTEXT": "clear", "SSL": "TLS", "CONTROLLER": "clear"}),
        (
            {"listeners": "PLAINTEXT://h:1,SSL://h:2", "security_inter_broker_protocol": "SSL"},
            {"PLAINTEXT": "clear", "SSL": "TLS", "CONTROLLER": "TLS"},
        ),
        (
            {"listeners": "SSL://h:1", "listener_security_protocol_map": "CONTROLLER:PLAINTEXT"},
            {"SSL": "TLS", "CONTROLLER": "clear"},
        ),
        (
            {"listeners": "IN://h:1,CONTROLLER://h:2", "listener_security_protocol_map": "IN:SSL,X:SASL_SSL"},
            {"IN": "TLS", "CONTROLLER": "TLS"},
        ),
        ({"listeners": "SASL_SSL://h:1"}, {"SASL_SSL": "TLS", "CONTROLLER": "TLS"}),
        (
            {"listeners": "PLAINTEXT://h:1", "listener_security_protocol_map": "PLAINTEXT:SSL"},
            {"PLAINTEXT": "TLS", "CONTROLLER": "TLS"},
        ),
    ],
)
def test_which_listeners_have_tls(settings: dict[str, str], expected: dict[str, str]) -> None:
    """The control listener has what the brokers' listener has, unless the map says otherwise."""
    assert protocols(listeners(**settings)) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"listeners": "PLAINTEXT://:9092"}, None),
        ({"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093", "control_plane_listener_name": "CONTROLLER"}, None),
        ({"listeners": "IN://:1,OUT://:2"}, "IN"),
        ({"listeners": "IN://:1,OUT://:2", "inter_broker_listener_name": "OUT"}, "OUT"),
    ],
)
def test_the_listener_on_which_brokers_may_send_replica_ids(settings: dict[str, str], expected: str | None) -> None:
    """None: clients and brokers share one listener."""
    assert (
        listeners(listener_security_protocol_map="IN:PLAINTEXT,OUT:PLAINTEXT", **settings).replica_listener == expected
    )


def test_an_advertised_port_of_its_own_stays() -> None:
    made = listeners(listeners="PLAINTEXT://0.0.0.0:0", advertised_listeners="PLAINTEXT://outside:443")
    ports = made.with_ports({"PLAINTEXT": 40000, "CONTROLLER": 40001})
    assert str(ports.advertised["PLAINTEXT"]) == "PLAINTEXT://outside:443"


def test_an_ipv6_address() -> None:
    assert listeners(listeners="PLAINTEXT://[::1]:9092").bound["PLAINTEXT"].host == "::1"


def test_a_host_that_means_all_is_never_advertised() -> None:
    assert listeners(listeners="PLAINTEXT://:9092").advertised["PLAINTEXT"].host not in ("", "0.0.0.0")


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"listeners": "9092"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://host"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://host:99999"}, "65535"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "twice"),
        ({"listeners": "PLAINTEXT://h:1,CONTROLLER://h:1"}, "same port"),
        ({"listeners": "SECRET://h:1"}, "listener.security.protocol.map"),
        ({"listeners": "CONTROLLER://h:1"}, "for clients"),
        ({"listeners": ""}, "for clients"),
        ({"listener_security_protocol_map": "PLAINTEXT:TLS"}, "listener.security.protocol.map"),
        ({"security_inter_broker_protocol": "SSL"}, "security.inter.broker.protocol=SSL: listeners has none of it"),
        (
            {
                "listeners": "PLAINTEXT://h:1,SSL://h:2",
                "inter_broker_listener_name": "PLAINTEXT",
                "security_inter_broker_protocol": "SSL",
            },
            "inter.broker.listener.name=PLAINTEXT is no listener of SSL",
        ),
        ({"control_plane_listener_name": "X"}, "control.plane.listener.name"),
        ({"inter_broker_listener_name": "X"}, "inter.broker.listener.name"),
        ({"inter_broker_listener_name": "CONTROLLER"}, "inter.broker.listener.name"),
        ({"advertised_listeners": "PLAINTEXT://0.0.0.0:1"}, "nobody can reach"),
        ({"advertised_listeners": "CONTROLLER://h:1"}, "listeners has"),
    ],
)
def test_invalid_listeners_are_refused(settings: dict[str, str], part: str) -> None:
    with pytest.raises(ConfigError) as raised:
        listeners(**settings)
    assert part in str(raised.value)
