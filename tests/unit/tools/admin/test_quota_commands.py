"""`ottla quota`: whose quotas it asks for, by either way of naming them, and what it refuses (CLI-6)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.cli import ottla
from tools.admin import kafka_admin


class FakeQuotas:
    """The quotas of a cluster, behind the admin client's methods."""

    def __init__(self) -> None:
        self.altered: list[tuple[dict[str, str | None], dict[str, float | None]]] = []
        self.asked: list[tuple[dict[str, Any], bool]] = []

    def quotas(
        self, wanted: Mapping[str, Any], *, is_strict: bool
    ) -> list[tuple[dict[str, str | None], dict[str, float]]]:
        self.asked.append((dict(wanted), is_strict))
        return [({"client-id": None, "user": "alice"}, {"producer_byte_rate": 1048576.0, "request_percentage": 12.5})]

    def alter_quotas(self, entity: Mapping[str, str | None], changes: Mapping[str, float | None]) -> None:
        self.altered.append((dict(entity), dict(changes)))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeQuotas:
    quotas = FakeQuotas()
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "fake:1")
    monkeypatch.setattr(kafka_admin, "KafkaAdmin", lambda *_arguments, **_options: quotas)
    return quotas


ENTITIES: list[tuple[str, dict[str, str | None]]] = [
    ("--user alice", {"user": "alice"}),
    ("--user-defaults", {"user": None}),
    ("--client-id app", {"client-id": "app"}),
    ("--client app --user alice", {"user": "alice", "client-id": "app"}),
    ("--user alice --client-defaults", {"user": "alice", "client-id": None}),
    ("--entity-type users --entity-name alice", {"user": "alice"}),
    (
        "--entity-type users --entity-name alice --entity-type clients --entity-default",
        {"user": "alice", "client-id": None},
    ),
    ("--entity-type clients --entity-default", {"client-id": None}),
]


@pytest.mark.parametrize(("options", "entity"), ENTITIES)
def test_whose_quota_it_is(fake: FakeQuotas, options: str, entity: dict[str, str | None]) -> None:
    done = ottla(f"quota set {options} producer_byte_rate=1048576 request_percentage=12.5")
    assert done.exit_code == 0, done.output
    assert ottla(f"quota remove {options} request_percentage").exit_code == 0
    assert ottla(f"quota remove {options}").exit_code == 0
    assert ottla(f"quota list {options}").exit_code == 0
    assert fake.altered == [
        (entity, {"producer_byte_rate": 1048576, "request_percentage": 12.5}),
        (entity, {"request_percentage": None}),
        (
            entity,
            dict.fromkeys(
                ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
            ),
        ),
    ]
    assert fake.asked == [(entity, True)]


def test_addresses(fake: FakeQuotas) -> None:
    assert ottla("quota set --ip 10.0.0.7 connection_creation_rate=10").exit_code == 0
    assert ottla("quota remove --ip-defaults").exit_code == 0
    assert fake.altered == [
        ({"ip": "10.0.0.7"}, {"connection_creation_rate": 10}),
        ({"ip": None}, {"connection_creation_rate": None}),
    ]


def test_lists(fake: FakeQuotas) -> None:
    listed = ottla("quota list")
    assert (
        listed.output
        == "user 'alice' with every other client-id: producer_byte_rate=1048576, request_percentage=12.5\n"
    )
    assert json.loads(ottla("quota list --entity-type users --format json").output)[0]["entity"]["user"] == "alice"
    assert fake.asked == [({}, False), ({"user": ...}, True)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("set producer_byte_rate=1", "say whose quota"),
        ("set --entity-type users producer_byte_rate=1", "say whose quota"),
        ("set --user a --user-defaults producer_byte_rate=1", "not both"),
        ("set --user a --entity-type users --entity-name b producer_byte_rate=1", "given twice"),
        ("set --entity-name b producer_byte_rate=1", "need --entity-type"),
        ("set --entity-type users --entity-name a --entity-name b producer_byte_rate=1", "more --entity-name"),
        ("set --user a --ip 1.2.3.4 producer_byte_rate=1", "no user and no client id"),
        ("set --user '' producer_byte_rate=1", "a name is empty"),
        ("set --user a rate=1", "give one of producer_byte_rate"),
        ("set --user a producer_byte_rate=1_0", "is no number"),
        ("set --user a producer_byte_rate=nan", "is no number"),
        ("set --user a", "Missing argument"),
        ("remove --user a rate", "give one of producer_byte_rate"),
    ],
)
def test_what_is_refused(fake: FakeQuotas, line: str, said: str) -> None:
    done = ottla(f"quota {line}")
    assert done.exit_code == 2
    assert said in done.output, shlex.split(line)
    assert not fake.altered
