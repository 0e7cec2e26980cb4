"""A rule about requests that several brokers were given is one fault in a verdict."""

from __future__ import annotations

from tools.judge.verdict import Fault
from tools.verify.run import together

RULE = ("drop", "fetch once")


def test_one_row_for_all_brokers() -> None:
    rows = [Fault(*RULE, broker, at, [("t", broker)]) for broker, at in ((1, 5.0), (2, 5.1), (3, 5.2))]
    kills = [Fault("kill", "broker 1", 1, 6.0, ()), Fault("kill", "broker 1", 1, 7.0, ())]
    heals = [Fault("heal", "fetch once", broker, 8.0, ()) for broker in (1, 2)]
    failed = Fault(*RULE, 1, 9.0, (), "it has ended")
    found = together([*rows, *kills, *heals, failed])
    assert [(str(fault), fault.at, fault.who) for fault in found] == [
        ("drop fetch once", 5.0, "brokers 1, 2, 3"),
        ("kill broker 1", 6.0, "broker 1"),
        ("kill broker 1", 7.0, "broker 1"),
        ("heal fetch once", 8.0, ""),
        ("drop fetch once", 9.0, "broker 1"),
    ]
