"""Where commands find the cluster: by the option, the environment variable, or the run directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.admin.bootstrap import NoBootstrapServer, client_endpoints, find_bootstrap_servers, parse_properties


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
