"""Rules for links become rules for packets."""

from __future__ import annotations

import pytest

from tools.faults.packets import Host, iptables
from tools.faults.words import FaultError, parse_words

HOSTS = {
    "1": Host("10.0.0.1", 901),
    "2": Host("10.0.0.2", 902),
    "3": Host("10.0.0.3", 903),
    "zookeeper": Host("10.0.0.9"),
}


def packets(words: str) -> list[str]:
    breakage = parse_words(f"cut broker 2 {words}").breakage
    assert breakage is not None
    return [" ".join(row) for rule in breakage.rules(2, (1, 2, 3)) for row in iptables(rule, HOSTS)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("from broker:1", ["INPUT -s 10.0.0.1 -j DROP", "OUTPUT -d 10.0.0.1 -j DROP"]),
        ("from zookeeper one-way in", ["INPUT -s 10.0.0.9 -j DROP"]),
        ("from peers one-way out", ["OUTPUT -d 10.0.0.1 -j DROP", "OUTPUT -d 10.0.0.3 -j DROP"]),
        ("from broker:1 one-way in reset", ["INPUT -s 10.0.0.1 -p tcp -j REJECT --reject-with tcp-reset"]),
    ],
)
def test_packets_are_dropped_or_reset(words: str, expected: list[str]) -> None:
    assert packets(words) == expected


def test_the_control_plane_alone_is_cut_by_its_ports() -> None:
    assert packets("from controller one-way in")[:2] == [
        "INPUT -s 10.0.0.1 -p tcp --dport 902 -j DROP",
        "INPUT -s 10.0.0.1 -p tcp --sport 901 -j DROP",
    ]


@pytest.mark.parametrize("words", ["from peers delay 1s", "from peers throttle 1Mbit", "from peers half"])
def test_what_packets_cannot_do(words: str) -> None:
    with pytest.raises(FaultError, match="need `ottla cluster start --links`"):
        packets(words)
