"""What a test asks of the users of its secured cluster: settings, rights, certificates; and that the next test finds them as before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from protocol.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    PatternFilter,
    PatternType,
    Permission,
    ResourceType,
    word_of,
)
from protocol.types import Address
from tools.admin.kafka_admin import KafkaAdmin
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.processes import ClusterError
from tools.cluster.secured.client_files import ClientAccess
from tools.cluster.secured.files import ADMIN, SecuredFiles
from tools.cluster.secured.renewal import renew
from tools.cluster.secured.rights import Right, admin_of, set_passwords, wait_for_rights, wait_until_let_in

NOT_SECURED = (
    "this cluster is not secured: start it with secure=True (with pytest: `ottla_secure = true` or --ottla-secure)"
)
RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.CLUSTER,
}


class OwnedUsers:
    """The methods in REQUESTS are what a test may ask. They raise ClusterError, AdminError."""

    REQUESTS: ClassVar = frozenset(
        {"user", "add_user", "remove_user", "change_right", "expire_certificate", "renew_certificate"}
    )

    def __init__(self, running: Callable[[], list[Address]]) -> None:
        """`running`: where the brokers are that can be asked."""
        self._running = running
        self._local: LocalCluster | None = None
        self._expired: set[int | str] = set()
        self._users: set[str] = set()
        self._rights: set[Right] = set()

    def started(self, local: LocalCluster) -> None:
        """The cluster runs now."""
        self._local = local if local.secured is not None else None
        self._expired.clear()
        self.keep()

    def user(self, user: str) -> dict[str, Any]:
        """What `ottla.users.User` is made of."""
        self._secured()
        access = self._access(user)
        return {
            "name": user,
            "password": access.password,
            "by_login": access.python(),
            "by_certificate": access.python_mutual_tls(),
        }

    def add_user(self, user: str) -> dict[str, Any]:
        """Returns when every broker lets the user log in by SCRAM."""
        secured = self._secured()
        if user in secured.passwords():
            raise ClusterError(f"there is a user {user!r} already")
        if not user.isidentifier():
            raise ClusterError(f"{user!r} cannot be a user of a test: use letters, digits and _")
        of_admin = self._access(ADMIN)
        secured.add_user(user, of_admin.servers, of_admin.mutual_tls_servers)
        self._let_in(user)
        return self.user(user)

    def remove_user(self, user: str) -> None:
        """Returns when every broker refuses the user. Its settings stay readable, so that a client can try."""
        access = self._access(user)
        if user == ADMIN:
            raise ClusterError("admin cannot be removed: it is who removes users")
        self._take_away(access)

    def change_right(
        self, user: str, operation: str, permission: str, resources: Mapping[str, str | bool | None]
    ) -> None:
        """Adds an ACL, removes its opposite, and returns when every broker knows it. A name that ends with `*` is a prefix, `*` is all."""
        self._secured()
        word = word_of(Operation, operation)
        if word is None or word in (Operation.UNKNOWN, Operation.ANY):
            raise ClusterError(f"{operation!r} is no operation: Read, Write, Create, Describe, All, ...")
        given = {name: value for name, value in resources.items() if value}
        if len(given) != 1:
            raise ClusterError(f"a right is about one of {', '.join(RESOURCES)}, not {', '.join(given) or 'none'}")
        ((kind, name),) = given.items()
        pattern = _pattern(RESOURCES[kind], CLUSTER_NAME if name is True else str(name))
        allows = permission == "allow"
        rule = Acl(f"User:{user}", WILDCARD, word, Permission.ALLOW if allows else Permission.DENY)
        opposite = rule._replace(permission=Permission.DENY if allows else Permission.ALLOW)
        admin = self._admin()
        admin.delete_acls([_exactly(pattern, opposite)])
        admin.create_acls([(pattern, rule)])
        self._wait_for_rights(lambda rights: (pattern, rule) in rights and (pattern, opposite) not in rights)

    def expire_certificate(self, of: int | str) -> None:
        """The certificate of a broker (its id) or of a user has expired. Returns when the broker uses it, for new connections."""
        local = self._secured_cluster()
        self._expired.add(of)
        renew(local, of, is_expired=True)

    def renew_certificate(self, of: int | str) -> None:
        """Gives a broker or a user a valid certificate again."""
        renew(self._secured_cluster(), of)
        self._expired.discard(of)

    # for the next test

    def renew_all(self) -> None:
        """Every certificate that was expired is valid again."""
        for of in list(self._expired):
            self.renew_certificate(of)

    def keep(self) -> None:
        """The users and rights of now are those to which `restore` returns."""
        if self._local is not None:
            admin = self._admin()
            self._users = set(admin.scram_users())
            self._rights = set(admin.describe_acls(PatternFilter(), AclFilter()))

    def restore(self) -> None:
        """Undoes what was changed since `keep`. All brokers must serve."""
        if self._local is None:
            return
        admin = self._admin()
        now = set(admin.describe_acls(PatternFilter(), AclFilter()))
        if now != self._rights:
            if added := now - self._rights:
                admin.delete_acls([_exactly(*right) for right in added])
            if removed := self._rights - now:
                admin.create_acls(list(removed))
            self._wait_for_rights(lambda rights: rights == self._rights)
        secured = self._secured()
        users = set(admin.scram_users())
        for user in users - self._users:
            if user in secured.passwords():
                self._take_away(self._access(user))
            else:  # a client made it
                admin.delete_passwords(user, list(admin.scram_users()[user]))
        for user in self._users - users:
            if user in secured.passwords():
                self._let_in(user)
        for user in set(secured.passwords()) - self._users - {"broker"}:
            secured.remove_user(user)

    def _take_away(self, access: ClientAccess) -> None:
        admin = self._admin()
        if mechanisms := list(admin.scram_users().get(access.user, ())):
            admin.delete_passwords(access.user, mechanisms)
        wait_until_let_in(access, self._running(), is_let_in=False)

    def _let_in(self, user: str) -> None:
        access = self._access(user)
        set_passwords(self._admin(), access)
        wait_until_let_in(access, self._running())

    def _wait_for_rights(self, are_known: Callable[[set[Right]], bool]) -> None:
        wait_for_rights(self._access(ADMIN), self._running(), are_known)

    def _access(self, user: str) -> ClientAccess:
        return self._secured_cluster().access(user)

    def _admin(self) -> KafkaAdmin:
        return admin_of(self._access(ADMIN))

    def _secured(self) -> SecuredFiles:
        secured = self._secured_cluster().secured
        assert secured is not None
        return secured

    def _secured_cluster(self) -> LocalCluster:
        if self._local is None:
            raise ClusterError(NOT_SECURED)
        return self._local


def _pattern(kind: ResourceType, name: str) -> Pattern:
    if name != WILDCARD and name.endswith("*"):
        return Pattern(kind, name[:-1], PatternType.PREFIXED)
    return Pattern(kind, name)


def _exactly(pattern: Pattern, rule: Acl) -> tuple[PatternFilter, AclFilter]:
    """The filters that choose this ACL and no other."""
    return PatternFilter(*pattern), AclFilter(*rule)
