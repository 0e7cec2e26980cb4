"""Where commands find the cluster: by the option, the environment variable, or the run directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.admin.bootstrap import NoBootstrapServer, client_endpoints, find_bootstrap_servers, parse_properties


def write_broker(directory: Path, broker_id: int, text: str) -> None:
    path = directory / f"broker-{broker_id}" / "server.properties"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_options_come_before_the_variable_and_the_variable_before_the_default_directory(tmp_path: Path) -> None:
    for broker_id in (10, 9):
        write_broker(
            tmp_path / "here",
            broker_id,
            f"listeners=PLAINTEXT://127.0.0.1:90{broker_id:02},CONTROLLER://127.0.0.1:80{broker_id:02}\n",
        )
    write_broker(tmp_path / "there", 1, "listeners=PLAINTEXT://there:1\n")
    environment = {"OTTLA_BOOTSTRAP_SERVER": "from-environment:1"}
    here, there = tmp_path / "here", tmp_path / "there"
    assert find_bootstrap_servers("given:1", None, environment, here) == "given:1"
    assert find_bootstrap_servers(None, there, environment, here) == "there:1"
    assert find_bootstrap_servers(None, None, environment, here) == "from-environment:1"
    assert find_bootstrap_servers(None, None, {}, here) == "127.0.0.1:9009,127.0.0.1:9010"


def test_without_a_source_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoBootstrapServer, match="ottla cluster start"):
        find_bootstrap_servers(None, None, {}, tmp_path)
    with pytest.raises(NoBootstrapServer, match=f"there is no cluster in {tmp_path}: `ottla cluster start"):
        find_bootstrap_servers(None, tmp_path, {"OTTLA_BOOTSTRAP_SERVER": "from-environment:1"}, tmp_path)


@pytest.mark.parametrize(
    ("properties", "endpoints"),
    [
        ({}, []),
        ({"listeners": "PLAINTEXT://:9092"}, ["localhost:9092"]),
        ({"listeners": "PLAINTEXT://a:1", "advertised.listeners": "PLAINTEXT://b:2"}, ["b:2"]),
        ({"listeners": "A://a:1, CTL://a:2", "control.plane.listener.name": "CTL"}, ["a:1"]),
        ({"listeners": "A://a:1,INTERNAL://a:2", "inter.broker.listener.name": "INTERNAL"}, ["a:1"]),
        ({"listeners": "A://a:1", "inter.broker.listener.name": "A"}, ["a:1"]),
        ({"listeners": "PLAINTEXT://127.0.0.1:0"}, []),  # a port that only the broker knows
    ],
)
def test_client_endpoints(properties: dict[str, str], endpoints: list[str]) -> None:
    assert client_endpoints(properties) == endpoints


def test_parse_properties_skips_comments() -> None:
    assert parse_properties("# c=d\n! e=f\n\n a = b=c \nnonsense\n") == {"a": "b=c"}
