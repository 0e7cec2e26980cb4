"""The audit log has each refusal, and no client can fill it or push others out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.process import audit_log
from broker.process.audit_log import ALL_LINES_PER_S, AUDIT_LOG_NAME, BURST, AuditLog
from tests.support.fake_time import FakeTime


class World:
    def __init__(self, directory: Path) -> None:
        self.time = FakeTime(1000.0)
        self._path = directory / AUDIT_LOG_NAME
        self.audit = AuditLog(self._path, self.time)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def refuse(self, address: str = "10.0.0.7", user: str = "bob") -> None:
        self.audit.login_refused(address, "CLIENTS", user, "PLAIN", "the password is wrong")

    def deny(self, principal: str) -> None:
        self.audit.denied("10.0.0.7", principal, "Write", "Topic:orders", "Produce")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_line_says_who_and_what(world: World) -> None:
    world.refuse(user="b\nob" + "x" * 1000)
    world.deny("User:bob")
    world.audit.handshake_refused("10.0.0.8", "SSL", "its certificate is not valid: certificate has expired")
    refused, denied, handshake = world.lines()
    assert handshake == {
        "time_ms": world.time.wall_ms(),
        "kind": "handshake_refused",
        "address": "10.0.0.8",
        "listener": "SSL",
        "reason": "its certificate is not valid: certificate has expired",
    }
    assert refused.pop("user").startswith("b\nobxxx")
    assert refused == {
        "time_ms": world.time.wall_ms(),
        "kind": "login_refused",
        "address": "10.0.0.7",
        "listener": "CLIENTS",
        "mechanism": "PLAIN",
        "reason": "the password is wrong",
    }
    assert denied == {
        "time_ms": world.time.wall_ms(),
        "kind": "denied",
        "address": "10.0.0.7",
        "principal": "User:bob",
        "operation": "Write",
        "resource": "Topic:orders",
        "api": "Produce",
    }
    assert all(len(json.dumps(line)) < 1000 for line in world.lines())


def test_one_source_leaves_others_their_lines(world: World) -> None:
    for number in range(BURST + 50):
        world.refuse(user=f"user-{number}")
    world.refuse("10.0.0.8")
    world.deny("User:bob")
    assert [line["address"] for line in world.lines()] == [*["10.0.0.7"] * BURST, "10.0.0.8", "10.0.0.7"]
    world.time.advance(1.0)
    world.refuse()
    world.refuse()
    assert [line.get("left_out") for line in world.lines()[-2:]] == [None, 50]


def test_many_sources_have_a_rate_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "SOURCES_MAX", 100)
    for number in range(audit_log.ALL_BURST + 500):
        world.refuse(f"10.0.{number // 256}.{number % 256}")
    assert len(world.lines()) == audit_log.ALL_BURST
    world.time.advance(1.0)
    for number in range(500):
        world.refuse(f"10.1.{number // 256}.{number % 256}")
    assert len(world.lines()) == audit_log.ALL_BURST + ALL_LINES_PER_S
    assert sum(line.get("left_out_of_others", 0) for line in world.lines()) == 420
