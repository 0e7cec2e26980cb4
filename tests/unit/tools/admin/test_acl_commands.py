"""`ottla acl`: what it requests for the options of `kafka-acls`, and what it says (CLI-5)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from protocol.acls import (
    Acl,
    AclFilter,
    Operation,
    Pattern,
    PatternFilter,
    PatternType,
    Permission,
    ResourceType,
    name_of,
)
from tests.support.cli import ottla
from tools.admin import kafka_admin

ORDERS = Pattern(ResourceType.TOPIC, "orders")


class FakeAcls:
    """The ACLs of a cluster, behind the admin client's methods."""

    def __init__(self) -> None:
        self.acls: set[tuple[Pattern, Acl]] = set()

    def create_acls(self, acls: Sequence[tuple[Pattern, Acl]]) -> None:
        self.acls |= set(acls)

    def describe_acls(self, patterns: PatternFilter, rules: AclFilter) -> list[tuple[Pattern, Acl]]:
        return sorted(row for row in self.acls if patterns.matches(row[0]) and rules.matches(row[1]))

    def delete_acls(self, filters: Sequence[tuple[PatternFilter, AclFilter]]) -> list[tuple[Pattern, Acl]]:
        gone = {row for chosen in filters for row in self.describe_acls(*chosen)}
        self.acls -= gone
        return sorted(gone)

    def shown(self) -> list[str]:
        return sorted(
            f"{pattern} {rule.principal} {rule.host} {name_of(rule.operation)} {name_of(rule.permission)}"
            for pattern, rule in self.acls
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeAcls:
    acls = FakeAcls()
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "fake:1")
    monkeypatch.setattr(kafka_admin, "KafkaAdmin", lambda *_arguments, **_options: acls)
    return acls


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--allow-principal User:a --topic t", ["Topic:LITERAL:t User:a * All Allow"]),
        (
            "--deny-principal User:a --deny-host h --operation read --operation Delete --topic t --group *",
            [
                f"{kind}:LITERAL:{name} User:a h {operation} Deny"
                for kind, name in (("Group", "*"), ("Topic", "t"))
                for operation in ("Delete", "Read")
            ],
        ),
        (
            "--allow-principal User:a --producer --idempotent --topic t --transactional-id x",
            [
                "Cluster:LITERAL:kafka-cluster User:a * IdempotentWrite Allow",
                "Topic:LITERAL:t User:a * Create Allow",
                "Topic:LITERAL:t User:a * Describe Allow",
                "Topic:LITERAL:t User:a * Write Allow",
                "TransactionalId:LITERAL:x User:a * Describe Allow",
                "TransactionalId:LITERAL:x User:a * Write Allow",
            ],
        ),
        (
            "--allow-principal User:a --consumer --topic t --group g --resource-pattern-type prefixed",
            [
                "Group:PREFIXED:g User:a * Read Allow",
                "Topic:PREFIXED:t User:a * Describe Allow",
                "Topic:PREFIXED:t User:a * Read Allow",
            ],
        ),
        (
            "--allow-principal User:a --operation ClusterAction --cluster --resource-pattern-type prefixed",
            ["Cluster:LITERAL:kafka-cluster User:a * ClusterAction Allow"],
        ),
    ],
)
def test_add_and_remove(fake: FakeAcls, options: str, expected: list[str]) -> None:
    result = ottla(f"acl add {options}")
    assert result.exit_code == 0, result.output
    assert fake.shown() == expected
    assert ottla(f"acl remove {options}").exit_code == 0
    assert fake.shown() == []


def test_list_and_remove_all_of_a_resource(fake: FakeAcls) -> None:
    fake.acls = {
        (ORDERS, Acl("User:a", "*", Operation.READ, Permission.ALLOW)),
        (Pattern(ResourceType.TOPIC, "ord", PatternType.PREFIXED), Acl("User:b", "*", Operation.ALL, Permission.DENY)),
        (Pattern(ResourceType.GROUP, "orders"), Acl("User:b", "*", Operation.READ, Permission.ALLOW)),
    }
    assert ottla("acl list --topic orders").output.splitlines() == [
        "Current ACLs for resource `ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)`:",
        "\t(principal=User:a, host=*, operation=READ, permissionType=ALLOW)",
    ]
    matching = json.loads(ottla("acl list --topic orders --resource-pattern-type match --format json").output)
    assert [row["name"] for row in matching] == ["ord", "orders"]
    assert len(json.loads(ottla("acl list --principal User:b --format json").output)) == 2
    asked = ottla("acl remove --topic orders --resource-pattern-type match", "n\n")
    assert asked.exit_code == 1
    assert len(fake.acls) == 3
    ottla("acl remove --topic orders --resource-pattern-type match --force")
    assert [pattern.resource_type for pattern, _ in fake.acls] == [ResourceType.GROUP]
    assert ottla("acl list --topic orders").output == "No ACLs.\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("add --allow-principal User:a", "name a resource"),
        ("add --topic t", "give --allow-principal or --deny-principal"),
        ("add --topic t --allow-principal alice", "'alice': a principal is a type and a name"),
        ("add --topic t --allow-principal User:a --operation Fly", "--operation 'Fly': expected one of All, Read"),
        (
            "add --group g --allow-principal User:a --operation Write",
            "it has Read, Delete, Describe, DescribeConfigs, AlterConfigs, All",
        ),
        ("add --topic t --allow-host h", "a host needs a principal"),
        ("add --topic t --allow-principal User:a --idempotent", "--idempotent needs --producer"),
        ("add --topic t --allow-principal User:a --consumer", "--consumer needs --topic and --group"),
        ("add --topic t --deny-principal User:a --producer", "go without --operation and --deny-principal"),
        ("add --topic t --allow-principal User:a --resource-pattern-type match", "'match' is not one of"),
    ],
)
def test_wrong_options_are_explained(fake: FakeAcls, arguments: str, says: str) -> None:
    result = ottla(f"acl {arguments}")
    assert result.exit_code == 2
    assert says in result.output
    assert not fake.acls
