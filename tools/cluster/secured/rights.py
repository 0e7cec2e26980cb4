"""Writes the users and rights of a new secured cluster to ZooKeeper, by the brokers' own APIs, as admin."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from protocol.acls import WILDCARD, Acl, AclFilter, Operation, Pattern, PatternFilter, Permission, ResourceType
from protocol.scram import HASHES, ITERATIONS_MIN
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
OF_ALICE = tuple(
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


def set_up(accesses: Sequence[ClientAccess], addresses: Iterable[tuple[str, int]], *, has_acls: bool) -> None:
    """Gives each user passwords for SCRAM, and alice her rights; returns when every broker knows them.

    Doing it again changes nothing. Raises ClusterError.
    """
    (of_admin,) = (access for access in accesses if access.user == ADMIN)
    try:
        admin = admin_of(of_admin)
        for access in accesses:
            set_passwords(admin, access)
        if has_acls:
            admin.create_acls(OF_ALICE)
        for address in addresses:
            _wait_until_known(accesses, address, has_acls=has_acls)
    except AdminError as problem:
        raise ClusterError(f"the users of the new cluster could not be created: {problem}") from None


def set_passwords(admin: KafkaAdmin, access: ClientAccess) -> None:
    """The user's password, for each mechanism of SCRAM. Raises AdminError."""
    for mechanism in HASHES:
        admin.set_password(access.user, mechanism, ITERATIONS_MIN, access.password)


def _wait_until_known(accesses: Sequence[ClientAccess], address: tuple[str, int], *, has_acls: bool) -> None:
    """A broker learns of changes by a watch in ZooKeeper."""
    deadline = time.monotonic() + SEEN_TIMEOUT_S
    waiting = [(access, mechanism) for access in accesses for mechanism in HASHES]
    while waiting:
        access, mechanism = waiting[0]
        if broker_view(address, ANSWER_TIMEOUT_S, security_of(access, mechanism)) is not None:
            waiting.pop(0)
            continue
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the broker at {address[0]}:{address[1]} does not let {access.user} log in by {mechanism}, {SEEN_TIMEOUT_S:g} s after "
                "the password was set"
            )
        time.sleep(POLL_S)
    (of_admin,) = (access for access in accesses if access.user == ADMIN)
    one = KafkaAdmin(f"{address[0]}:{address[1]}", properties=of_admin.java(PLAIN))
    while has_acls and not set(OF_ALICE) <= set(one.describe_acls(PatternFilter(), AclFilter())):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the broker at {address[0]}:{address[1]} does not know the ACLs, {SEEN_TIMEOUT_S:g} s after they were set"
            )
        time.sleep(POLL_S)
