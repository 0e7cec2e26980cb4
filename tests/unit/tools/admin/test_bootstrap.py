"""Where commands find the cluster: by the option, the environment variable, or the run directory."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.support.cli import ottla
from tools.admin.bootstrap import (
    NoBootstrapServer,
    addresses_of,
    client_listeners,
    find_bootstrap_servers,
    no_answer,
    parse_properties,
    run_directory_endpoints,
)


def write_broker(directory: Path, broker_id: int, text: str) -> None:
    path = directory / f"broker-{broker_id}" / "server.properties"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_the_brokers_of_a_run_directory_are_in_the_order_of_their_ids(tmp_path: Path) -> None:
    """Which of several names of a cluster counts: test_naming.py."""
    for broker_id in (10, 9):
        write_broker(tmp_path, broker_id, f"listeners=PLAINTEXT://h:90{broker_id:02},CONTROLLER://h:80{broker_id:02}\n")
    assert find_bootstrap_servers(None, None, {}, tmp_path) == "h:9009,h:9010"


def test_without_a_source_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoBootstrapServer, match="ottla cluster start"):
        find_bootstrap_servers(None, None, {}, tmp_path)
    with pytest.raises(NoBootstrapServer, match=f"there is no cluster in {tmp_path}: `ottla cluster start"):
        find_bootstrap_servers(None, tmp_path, {"OTTLA_BOOTSTRAP_SERVER": "from-environment:1"}, tmp_path)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1, b:2", (("a", 1), ("b", 2))),
        ("a", (("a", 9092),)),
        ("[::1]:1", (("::1", 1),)),
        *((text, None) for text in ("", "a:1,", ":1", "a:", "a:x", "a:65536", "a:\u0661", "a\udcff:1")),
    ],
    ids=ascii,
)
def test_addresses(text: str, addresses: tuple[tuple[str, int], ...] | None) -> None:
    if addresses is not None:
        assert addresses_of(text) == addresses
        return
    with pytest.raises(ValueError, match="is not host:port"):
        addresses_of(text)
    if text:
        with pytest.raises(NoBootstrapServer, match=r"--bootstrap-server: .* is not host:port"):
            find_bootstrap_servers(text)
        with pytest.raises(NoBootstrapServer, match=r"OTTLA_BOOTSTRAP_SERVER: .* is not host:port"):
            find_bootstrap_servers(None, None, {"OTTLA_BOOTSTRAP_SERVER": text})


@pytest.mark.parametrize("host", ["nosuch.invalid", "a..b"])
def test_a_host_name_that_does_not_resolve_is_named(host: str) -> None:
    servers = f"127.0.0.1:1,{host}:9092"
    assert (
        no_answer(servers)
        == f"no broker answers at {servers}: the host name {host} does not resolve; check the address"
    )
    assert "check the address and that the cluster runs" in no_answer("127.0.0.1:1")


def test_an_address_that_accepts_connections_is_not_taken_for_a_dead_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        servers = f"127.0.0.1:1,127.0.0.1:{listening.getsockname()[1]}"
        assert "connections are accepted. Either --command-config" in no_answer(servers)


@pytest.mark.parametrize(
    "command",
    [
        "topic list",
        "group list",
        "cluster status",
        "cluster health",
        "produce t",
        "consume t",
        "verify run",
        "console",
        "fault kill controller --fault-command f",
    ],
)
def test_every_command_says_that_a_host_name_does_not_resolve(command: str) -> None:
    assert re.search("host name .*does not resolve", ottla(f"{command} --bootstrap-server nosuch.invalid").output)


@pytest.mark.parametrize(
    ("properties", "listeners"),
    [
        ({}, {}),
        ({"listeners": "PLAINTEXT://:9092"}, {"PLAINTEXT": "localhost:9092"}),
        ({"listeners": "PLAINTEXT://a:1", "advertised.listeners": "PLAINTEXT://b:2"}, {"PLAINTEXT": "b:2"}),
        ({"listeners": "A://a:1, CTL://a:2", "control.plane.listener.name": "CTL"}, {"A": "a:1"}),
        ({"listeners": "A://a:1,INTERNAL://a:2", "inter.broker.listener.name": "INTERNAL"}, {"A": "a:1"}),
        ({"listeners": "A://a:1", "inter.broker.listener.name": "A"}, {"A": "a:1"}),
        ({"listeners": "PLAINTEXT://127.0.0.1:0"}, {}),  # a port that only the broker knows
    ],
)
def test_client_listeners(properties: dict[str, str], listeners: dict[str, str]) -> None:
    assert client_listeners(properties) == listeners


def test_a_run_directory_with_several_listeners_gives_the_one_of_the_clients_protocol(tmp_path: Path) -> None:
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker-1" / "server.properties").write_text(
        "listeners=SASL_SSL://a:1,SSL://a:2,CERTIFIED://a:3,CONTROLLER://a:4\n"
        "listener.security.protocol.map=CERTIFIED:SSL,CONTROLLER:SSL\n"
    )
    found = {
        protocol: run_directory_endpoints(tmp_path, protocol) for protocol in (None, "SASL_SSL", "SSL", "PLAINTEXT")
    }
    assert found == {None: ["a:1"], "SASL_SSL": ["a:1"], "SSL": ["a:2"], "PLAINTEXT": ["a:1"]}


def test_parse_properties_skips_comments() -> None:
    assert parse_properties("# c=d\n! e=f\n\n a = b=c \nnonsense\n") == {"a": "b=c"}
