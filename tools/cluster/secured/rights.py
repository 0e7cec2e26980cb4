"""Writes the users and rights of a new secured cluster to ZooKeeper, by the brokers' own APIs, as admin."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from protocol.acls import WILDCARD, Acl, AclFilter, Operation, Pattern, PatternFilter, Permission, ResourceType
from protocol.scram import HASHES, ITERATIONS_MIN
from protocol.types import Address
from tools.admin.kafka_admin import KafkaAdmin
from tools.cluster.processes import ClusterError
from tools.cluster.readiness import broker_view
from tools.cluster.secured.client_files import PLAIN, ClientAccess
from tools.cluster.secured.files import ADMIN, ALICE
from tools.failures import AdminError
from tools.wire.client_properties import read_security
from tools.wire.security import Security

SEEN_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 2.0
POLL_S = 0.02
Right = tuple[Pattern, Acl]
OF_ALICE: tuple[Right, ...] = tuple(
    (Pattern(kind, WILDCARD), Acl(f"User:{ALICE}", WILDCARD, Operation.ALL, Permission.ALLOW))
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
)
"""Alice may do with topics, groups and transactions whatever she wants, and nothing with the cluster. Bob may do nothing."""


def security_of(access: ClientAccess, mechanism: str) -> Security:
    """The same for ottla's own requests."""
    settings = access.java(mechanism)
    return read_security(None, list(settings.items()), ignores_others=True)


def admin_of(access: ClientAccess) -> KafkaAdmin:
    """It logs in by PLAIN, so it also works before there are users of SCRAM. Raises AdminError."""
    return KafkaAdmin(access.servers, properties=access.java(PLAIN))


def set_up(accesses: Sequence[ClientAccess], addresses: Iterable[Address], *, has_acls: bool) -> None:
    """Gives each user passwords for SCRAM, and alice her rights; returns when every broker knows them.

    Doing it again changes nothing. Raises ClusterError.
    """
    (of_admin,) = (access for access in accesses if access.user == ADMIN)
    places = list(addresses)
    try:
        admin = admin_of(of_admin)
        for access in accesses:
            set_passwords(admin, access)
        if has_acls:
            admin.create_acls(OF_ALICE)
        for access in accesses:
            wait_until_let_in(access, places)
        if has_acls:
            wait_for_rights(of_admin, places, lambda rights: rights >= set(OF_ALICE))
    except AdminError as problem:
        raise ClusterError(f"the users of the new cluster could not be created: {problem}") from None


def set_passwords(admin: KafkaAdmin, access: ClientAccess) -> None:
    """The user's password, for each mechanism of SCRAM. Raises AdminError."""
    for mechanism in HASHES:
        admin.set_password(access.user, mechanism, ITERATIONS_MIN, access.password)


def wait_until_let_in(access: ClientAccess, addresses: Iterable[Address], *, is_let_in: bool = True) -> None:
    """Until each broker lets the user log in by SCRAM, or refuses it: it learns of a change by a watch. Raises ClusterError."""
    for address in addresses:
        for mechanism in HASHES:
            security = security_of(access, mechanism)
            _wait(
                lambda address=address, security=security: (  # type: ignore[misc]
                    (broker_view(address, ANSWER_TIMEOUT_S, security) is not None) == is_let_in
                ),
                f"the broker at {address[0]}:{address[1]} {'refuses' if is_let_in else 'lets in'} {access.user} by {mechanism}",
            )


def wait_for_rights(
    of_admin: ClientAccess, addresses: Iterable[Address], are_known: Callable[[set[Right]], bool]
) -> None:
    """Until the ACLs that each broker knows are as they shall be. Raises ClusterError, AdminError."""
    for host, port in addresses:
        admin = KafkaAdmin(f"{host}:{port}", properties=of_admin.java(PLAIN))
        _wait(
            lambda admin=admin: are_known(set(admin.describe_acls(PatternFilter(), AclFilter()))),  # type: ignore[misc]
            f"the broker at {host}:{port} does not know the ACLs",
        )


def _wait(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + SEEN_TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise ClusterError(f"{otherwise}, {SEEN_TIMEOUT_S:g} s after a change")
        time.sleep(POLL_S)
