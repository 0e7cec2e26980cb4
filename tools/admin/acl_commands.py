"""`ottla acl`: ACLs of any Kafka with an authorizer, with the option names of Kafka's `kafka-acls`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from protocol.acls import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    PatternFilter,
    PatternType,
    Permission,
    ResourceType,
    name_of,
    word_of,
)
from tools.admin.connection import connect, connection_options, print_json
from tools.admin.naming import Where
from tools.failures import errors_in_one_line
from tools.terminal import echo

Command = TypeVar("Command", bound=Callable[..., None])
Wanted = Mapping[PatternFilter, frozenset[Acl]]
"""Resources, and the ACLs that are meant for each."""

RESOURCE_OPTIONS = (
    ("--topic", ResourceType.TOPIC, "a topic"),
    ("--group", ResourceType.GROUP, "a consumer group"),
    ("--transactional-id", ResourceType.TRANSACTIONAL_ID, "a transactional id"),
    ("--delegation-token", ResourceType.DELEGATION_TOKEN, "a delegation token"),
    ("--user-principal", ResourceType.USER, "a user"),
)
OF_PRODUCERS: Mapping[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    ResourceType.CLUSTER: (Operation.IDEMPOTENT_WRITE,),
}
OF_CONSUMERS: Mapping[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}


def _named(kind: ResourceType) -> str:
    return kind.name.lower()


def resource_options(command: Command) -> Command:
    """What the ACLs are about. The command gets the names of each type as a tuple, and `cluster`."""
    for option, kind, says in reversed(RESOURCE_OPTIONS):
        says = f"{says}; * is every one of them; may be repeated"
        command = click.option(option, _named(kind), multiple=True, metavar="NAME", help=says)(command)
    return click.option("--cluster", is_flag=True, help="the cluster itself")(command)


def pattern_option(default: str, *choices: str) -> Callable[[Command], Command]:
    """`--resource-pattern-type`; the command gets it as `pattern_type`."""
    return click.option(
        "--resource-pattern-type",
        "pattern_type",
        type=click.Choice(choices, case_sensitive=False),
        default=default,
        show_default=True,
        help="prefixed: resources whose names begin so; match: every ACL that counts for the name",
    )


def rule_options(command: Command) -> Command:
    """Who, from where, and what. The command gets each as a tuple of texts."""
    producer = "what a producer needs on --topic and --transactional-id"
    options = (
        click.option(
            "--allow-principal", multiple=True, metavar="TYPE:NAME", help="such as User:alice; User:* is anybody"
        ),
        click.option("--deny-principal", multiple=True, metavar="TYPE:NAME", help="counts before what is allowed"),
        click.option("--allow-host", multiple=True, metavar="HOST", help="an address  [default: *, every host]"),
        click.option("--deny-host", multiple=True, metavar="HOST", help="an address  [default: *, every host]"),
        click.option("--operation", multiple=True, metavar="OPERATION", help="such as Read  [default: All]"),
        click.option("--producer", is_flag=True, help=producer),
        click.option("--consumer", is_flag=True, help="what a consumer needs on --topic and --group"),
        click.option("--idempotent", is_flag=True, help="with --producer: also to the cluster IdempotentWrite"),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def acl() -> None:
    """Add, remove and list ACLs: who may do what (docs/SECURITY.md)."""


@acl.command("add")
@resource_options
@pattern_option("literal", "literal", "prefixed")
@rule_options
@connection_options
def add_acls(where: Where, output: str, pattern_type: str, **options: Any) -> None:
    """Allow or deny operations on resources."""
    wanted = _wanted(_resources(options, _pattern_type(pattern_type)), options)
    if not any(wanted.values()):
        raise click.UsageError("give --allow-principal or --deny-principal.")
    new = [
        (Pattern(ResourceType(chosen.resource_type), str(chosen.name), PatternType(chosen.pattern_type)), rule)
        for chosen, rules in wanted.items()
        for rule in sorted(rules)
    ]
    with errors_in_one_line():
        connect(where).create_acls(new)
        _print(output, new, "Added ACLs for")


@acl.command("remove")
@resource_options
@pattern_option("literal", "any", "match", "literal", "prefixed")
@rule_options
@click.option("--force", is_flag=True, help="remove all ACLs of the resources without asking")
@connection_options
def remove_acls(where: Where, output: str, pattern_type: str, force: bool, **options: Any) -> None:
    """Remove ACLs; all of the resources if no principal is given."""
    wanted = _wanted(_resources(options, _pattern_type(pattern_type)), options)
    filters: list[tuple[PatternFilter, AclFilter]] = []
    for chosen, rules in wanted.items():
        filters += [(chosen, AclFilter(*rule)) for rule in sorted(rules)] or [(chosen, AclFilter())]
    if not (force or any(wanted.values())):
        click.confirm("Remove all ACLs of these resources?", abort=True, err=True)
    with errors_in_one_line():
        removed = connect(where).delete_acls(filters)
        _print(output, removed, "Removed ACLs of")


@acl.command("list")
@resource_options
@pattern_option("any", "any", "match", "literal", "prefixed")
@click.option("--principal", "principals", multiple=True, metavar="TYPE:NAME", help="only ACLs of this principal")
@connection_options
def list_acls(where: Where, output: str, pattern_type: str, principals: Sequence[str], **options: Any) -> None:
    """Print ACLs: all, or those of resources."""
    kind = _pattern_type(pattern_type)
    chosen = _resources(options, kind) or [PatternFilter(pattern_type=kind)]
    with errors_in_one_line():
        admin = connect(where)
        found: dict[tuple[Pattern, Acl], None] = {}
        for one in chosen:
            for principal in principals or (None,):
                found.update(dict.fromkeys(admin.describe_acls(one, AclFilter(principal))))
        _print(output, sorted(found), "Current ACLs for")


def _pattern_type(text: str) -> PatternType:
    return PatternType[text.upper()]


def _resources(options: Mapping[str, Any], pattern_type: PatternType) -> list[PatternFilter]:
    chosen = [
        PatternFilter(kind, name, pattern_type) for _, kind, _ in RESOURCE_OPTIONS for name in options[_named(kind)]
    ]
    if options["cluster"]:
        chosen.append(_cluster(pattern_type))
    return chosen


def _cluster(pattern_type: PatternType) -> PatternFilter:
    kind = PatternType.LITERAL if pattern_type is PatternType.PREFIXED else pattern_type
    return PatternFilter(ResourceType.CLUSTER, CLUSTER_NAME, kind)


def _wanted(resources: Sequence[PatternFilter], options: Mapping[str, Any]) -> dict[PatternFilter, frozenset[Acl]]:
    """The ACLs of each resource; none without a principal. Raises UsageError."""
    if not resources:
        raise click.UsageError("name a resource: --topic, --group, --cluster, --transactional-id, ...")
    kinds = {chosen.resource_type for chosen in resources}
    roles = [needs for role, needs in (("producer", OF_PRODUCERS), ("consumer", OF_CONSUMERS)) if options[role]]
    if options["idempotent"] and not options["producer"]:
        raise click.UsageError("--idempotent needs --producer.")
    if not roles:
        operations = [_operation(text) for text in options["operation"]] or [Operation.ALL]
        for kind in kinds:
            _check(ResourceType(kind), operations)
        return {chosen: _rules(options, operations) for chosen in resources}
    if options["operation"] or options["deny_principal"]:
        raise click.UsageError("--producer and --consumer go without --operation and --deny-principal.")
    if ResourceType.TOPIC not in kinds or (options["consumer"] and ResourceType.GROUP not in kinds):
        raise click.UsageError("--producer needs --topic, and --consumer needs --topic and --group.")
    wanted: dict[PatternFilter, frozenset[Acl]] = {}
    for needs in roles:
        chosen = [one for one in resources if one.resource_type in needs]
        if needs is OF_PRODUCERS and options["idempotent"]:
            chosen.append(_cluster(PatternType.LITERAL))
        for one in chosen:
            rules = _rules(options, needs[ResourceType(one.resource_type)])
            wanted[one] = wanted.get(one, frozenset()) | rules
    return wanted


def _rules(options: Mapping[str, Any], operations: Iterable[Operation]) -> frozenset[Acl]:
    sides = (
        (Permission.ALLOW, options["allow_principal"], options["allow_host"]),
        (Permission.DENY, options["deny_principal"], options["deny_host"]),
    )
    for _, principals, hosts in sides:
        if hosts and not principals:
            raise click.UsageError("a host needs a principal: --allow-principal, --deny-principal.")
        for principal in principals:
            if not all(principal.partition(":")):
                raise click.UsageError(f"{principal!r}: a principal is a type and a name, such as User:alice.")
    return frozenset(
        Acl(principal, host, operation, permission)
        for permission, principals, hosts in sides
        for principal in principals
        for host in hosts or (WILDCARD,)
        for operation in operations
    )


def _operation(text: str) -> Operation:
    found = word_of(Operation, text)
    if found is None or found < Operation.ALL:
        names = ", ".join(name_of(operation) for operation in Operation if operation >= Operation.ALL)
        raise click.UsageError(f"--operation {text!r}: expected one of {names}.")
    return found


def _check(kind: ResourceType, operations: Iterable[Operation]) -> None:
    known = OPERATIONS_OF[kind]
    wrong = [name_of(operation) for operation in operations if operation not in (*known, Operation.ALL)]
    if wrong:
        names = ", ".join(map(name_of, known))
        raise click.UsageError(f"{name_of(kind)} has no operation {', '.join(wrong)}: it has {names}, All.")


def _print(output: str, acls: Sequence[tuple[Pattern, Acl]], title: str) -> None:
    if output == "json":
        print_json([_as_json(*row) for row in acls])
        return
    before = None
    for pattern, rule in acls:
        if pattern != before:
            before = pattern
            kind, name, pattern_type = pattern
            echo(
                f"{title} resource `ResourcePattern(resourceType={kind.name}, name={name}, patternType={pattern_type.name})`:"
            )
        echo(
            f"\t(principal={rule.principal}, host={rule.host}, operation={rule.operation.name}, "
            f"permissionType={rule.permission.name})"
        )
    if not acls:
        echo("No ACLs.")


def _as_json(pattern: Pattern, rule: Acl) -> dict[str, str]:
    return {
        "resourceType": pattern.resource_type.name,
        "name": pattern.name,
        "patternType": pattern.pattern_type.name,
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation.name,
        "permissionType": rule.permission.name,
    }
