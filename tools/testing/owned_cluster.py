"""What a test asks of its cluster: roles, faults, topics; and that nothing of a test is there for the next one."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from protocol.kafka.api_keys import ApiKey
from protocol.types import Address
from tools.admin.client_settings import read_librdkafka_config
from tools.admin.naming import client_properties_of
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.processes import ClusterError
from tools.faults.cluster import Node, State
from tools.faults.processes import NO_LINKS, ProcessCluster
from tools.faults.record import FaultRecord
from tools.faults.roles import Roles
from tools.faults.script import DoneFault, Faulted, why_impossible
from tools.faults.words import FaultError, Words, parse_words
from tools.testing.owned_users import OwnedUsers
from tools.wire.client import ask
from tools.wire.security import Security

if TYPE_CHECKING:
    from tools.groups.kafka_groups import KafkaGroups

ROLE_TIMEOUT_S = 10.0
SETTLED_TIMEOUT_S = 30.0
"""For the brokers to know a new topic, or their groups after a heal."""
POLL_S = 0.02
ANSWER_TIMEOUT_S = 2.0
LIST_GROUPS_VERSION = 4
SETTINGS = {"offsets.topic.num.partitions": "3"}
"""What differs from a cluster of `ottla cluster start`, unless the test run says otherwise: fewer partitions to move in a failover."""
REPLICATION_FACTOR_MAX, MIN_INSYNC_REPLICAS = 3, 2
TIMELINE_LINES_MAX = 200
SERVES_AGAIN = ("restart", "bounce", "heal")
"""After these actions the test continues when the victim serves."""
LINKS_ADVICE = (
    "this cluster has no links to cut: start it with links=True (with pytest: `ottla_links = true` or --ottla-links)"
)

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class _Lasting:
    """A fault that is undone at `due_s` (monotonic)."""

    due_s: float
    words: Words
    victims: Sequence[Node]


class OwnedCluster:
    """The methods in REQUESTS are what a test may ask. They raise ClusterError, FaultError, AdminError, ZooKeeperError."""

    REQUESTS: ClassVar = frozenset(
        {
            "start",
            "leader_of",
            "follower_of",
            "controller",
            "coordinator_of",
            "in_sync_replicas",
            "fault",
            "end_rule",
            "create_topic",
            "delete_topic",
            "keep_contents",
            "clear",
            "timeline",
        }
    )

    def __init__(self) -> None:
        self.done: list[DoneFault] = []
        """The faults that happened; `at_ns` by the monotonic clock, which all processes of a machine share."""
        self._directory: Path | None = None
        self._keeps_files = False
        self._local: LocalCluster | None = None
        self._admin: KafkaGroups | None = None
        self._kept: tuple[set[str], set[str]] = (set(), set())
        """Topics and groups that `clear` leaves."""
        self._left: tuple[set[str], set[str]] = (set(), set())
        """Topics and groups that `clear` could not delete; it tries again."""
        self.users = OwnedUsers(self._addresses)
        self._lasting: list[_Lasting] = []
        self._last: list[Node] = []

    # start and end

    def start(
        self, brokers: int, settings: Mapping[str, str], links: bool, secure: bool, keep: str | None
    ) -> dict[str, Any]:
        """Makes and starts the cluster; returns what stays the same while it lives."""
        self._keeps_files = keep is not None
        self._directory = Path(tempfile.mkdtemp(prefix="ottla-test-")) if keep is None else Path(keep)
        local = LocalCluster(self._directory)
        if local.exists():
            if local.running():
                raise ClusterError(f"{local.directory} is in use by a running cluster: keep the files elsewhere")
            local.destroy()
        self._local = local
        local.create(brokers=brokers, overrides={**SETTINGS, **settings}, links=links, secure=secure)
        local.start()
        self.users.started(local)
        self._target = ProcessCluster(local)
        self._roles = Roles(self._target)
        self._faulted = Faulted(self._target, (), time.monotonic_ns, FaultRecord(self._target.record_file))
        # It makes __consumer_offsets, as Kafka cannot do while a broker is dead that shall have a replica.
        with contextlib.suppress(ClusterError):
            self.coordinator_of("ottla")
        return {
            "bootstrap_servers": local.bootstrap_servers,
            "zookeeper_connect": local.zookeeper_connect,
            "broker_ids": local.broker_ids,
            "directory": str(local.directory),
            "addresses": {broker: local.address(broker) for broker in local.broker_ids},
            "warnings": local.unknown_settings(),
        }

    def remove(self) -> None:
        """Kills all processes; removes the files, unless they are to be kept. May be called while a thread uses the cluster."""
        for _ in range(3):  # a broker may start meanwhile
            if self._local is None:
                break
            with contextlib.suppress(Exception):
                for process in self._local.running():
                    process.kill()
                if not self._keeps_files:
                    self._local.destroy()
            if not self._local.running():
                break
        if self._directory is not None and not self._keeps_files:
            shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def client_settings(self) -> dict[str, str]:
        """librdkafka's, for ottla's own clients."""
        local = self._started()
        known = read_librdkafka_config(client_properties_of(local.directory))
        return {**known, "bootstrap.servers": local.bootstrap_servers}

    @property
    def security(self) -> Security:
        """The same for connections without librdkafka."""
        return self._target.security

    # roles

    def leader_of(self, topic: str, partition: int) -> int:
        return _wait_for(lambda: self._roles.leader(topic, partition), f"nobody leads {topic}-{partition}")

    def follower_of(self, topic: str, partition: int) -> int:
        return _wait_for(lambda: self._roles.follower(topic, partition), f"nobody follows {topic}-{partition}")

    def controller(self) -> int:
        self._started()
        return _wait_for(self._roles.controller, "nobody is the controller")

    def coordinator_of(self, group: str) -> int:
        return _wait_for(lambda: self._roles.coordinator(group), f"nobody coordinates group {group!r}")

    def in_sync_replicas(self, topic: str, partition: int) -> Sequence[int]:
        view = self._roles.partitions(topic).get(partition)
        return () if view is None else view.isr

    # faults

    def fault(self, words: str) -> dict[str, Any]:
        """`broker`: that was hit; None for ZooKeeper, for a `heal` of everything, and for `in_requests`, a fault in single requests."""
        local = self._started()
        said = parse_words(words)
        if said.at_s is not None:
            raise FaultError(f"{words!r}: `at` is for scripts; a fault of a test happens when the test says so")
        reason = why_impossible(said, self._target)
        if reason is not None:
            raise FaultError(f"{words!r}: {LINKS_ADVICE if reason == NO_LINKS else reason}")
        rows, victims = self._faulted.carry_out(said, self._last)
        self.done += rows
        if victims:
            self._last = victims
        for row in rows:
            if row.error:
                raise ClusterError(f"{words!r}: {row.error}")
        hit = [victim.broker_id for victim in victims if victim.broker_id is not None]
        if said.verb in SERVES_AGAIN:
            local.wait_ready(brokers=hit if victims else None)
        if victims and said.lasts_s is not None:
            self._lasting.append(_Lasting(time.monotonic() + said.lasts_s, said, victims))
        in_requests = said.request is not None
        return {"broker": hit[0] if hit and not in_requests else None, "in_requests": in_requests}

    def end_rule(self, words: str) -> None:
        """Of a fault in single requests. The brokers stay as they are."""
        self.done += self._faulted.undo(
            parse_words(words), [self._target.broker(each) for each in self._target.broker_ids]
        )

    def heal(self) -> None:
        """Undoes everything; returns when all brokers serve."""
        self._lasting.clear()
        self._faulted.heal_all()
        self.users.renew_all()
        self._started().wait_ready()

    def next_undo_s(self) -> float | None:
        """Seconds until a fault with `for` is to be undone; None if there is none."""
        if not self._lasting:
            return None
        return max(0.0, min(lasting.due_s for lasting in self._lasting) - time.monotonic())

    def undo_due(self) -> None:
        """Undoes the faults whose time is over."""
        for lasting in [each for each in self._lasting if each.due_s <= time.monotonic()]:
            self._lasting.remove(lasting)
            self.done += self._faulted.undo(lasting.words, lasting.victims)

    # contents

    def create_topic(
        self, topic: str, partitions: int, replication_factor: int | None, configs: Mapping[str, str]
    ) -> None:
        brokers = len(self._started().broker_ids)
        replicas = min(REPLICATION_FACTOR_MAX, brokers) if replication_factor is None else replication_factor
        in_sync = {"min.insync.replicas": str(min(MIN_INSYNC_REPLICAS, replicas))} if replicas > 0 else {}
        self._groups().create_topic(
            topic, partitions=partitions, replication_factor=replicas, configs={**in_sync, **configs}
        )
        deadline = time.monotonic() + SETTLED_TIMEOUT_S
        while not all(self._leads_everywhere(topic, partitions, broker) for broker in self._running()):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"topic {topic!r} is created, but {SETTLED_TIMEOUT_S:g} s later some broker does not know it"
                )
            time.sleep(POLL_S)

    def _leads_everywhere(self, topic: str, partitions: int, broker: int) -> bool:
        """Whether this broker knows a leader of each partition of the topic."""
        views = self._roles.partitions_by(topic, broker)
        return len(views) == partitions and all(view.leader is not None for view in views.values())

    def delete_topic(self, topic: str) -> None:
        if not self._groups().delete_topic(topic):
            raise ClusterError(f"topic {topic!r} does not exist")

    def keep_contents(self) -> None:
        topics, groups = self._contents()
        self.users.keep()
        self._kept = (topics - self._left[0], groups - self._left[1])

    def clear(self) -> list[str]:
        """Why topics and groups are still there, a line each."""
        self.heal()
        if self.done:
            self._admin = None  # it may still look for the brokers that died
            self.done.clear()
        topics, groups = self._contents()
        topics, groups = topics - self._kept[0], groups - self._kept[1]
        self._left = (set(), set())
        problems = []
        if groups:
            for group, reason in self._groups().delete_groups(sorted(groups)).items():
                if reason is not None:
                    self._left[1].add(group)
                    problems.append(reason)
        for topic in sorted(topics):
            self._groups().delete_topic(topic)
        self.users.restore()
        return problems

    def _contents(self) -> tuple[set[str], set[str]]:
        """The topics and the groups of the cluster, without internal topics."""
        groups: set[str] = set()
        for broker in self._running():
            answer = _wait_for(
                lambda broker=broker: self._listed_groups(broker),  # type: ignore[misc]
                f"broker {broker} does not list its groups",
                SETTLED_TIMEOUT_S,
            )
            groups |= answer
        return set(self._roles.topics()), groups

    def _listed_groups(self, broker: int) -> set[str] | None:
        """None while it loads them."""
        answer = ask(
            self._target.address(broker),
            ANSWER_TIMEOUT_S,
            ApiKey.LIST_GROUPS,
            LIST_GROUPS_VERSION,
            {"states_filter": []},
            security=self._target.security,
        )
        if answer is None or answer.error_code:
            return None
        return {str(group.group_id) for group in answer.groups}

    def timeline(self, since_s: float | None) -> str:
        """`since_s`: since 1970. The last TIMELINE_LINES_MAX lines."""
        from tools.timeline.history import history_of
        from tools.timeline.sources import of_directory
        from tools.timeline.story import Story, told

        lines = Story().lines(history_of(of_directory(self._started().directory), ()))
        shown = [line for line in lines if since_s is None or line.at_ms >= since_s * 1000]
        start_ms = since_s * 1000 if since_s is not None else shown[0].at_ms if shown else 0.0
        return "\n".join(told(shown[-TIMELINE_LINES_MAX:], start_ms))

    def _running(self) -> list[int]:
        local = self._started()
        return [broker for broker in local.broker_ids if self._target.broker(broker).state() is State.RUNNING]

    def _groups(self) -> KafkaGroups:
        if self._admin is None:
            from tools.groups.kafka_groups import KafkaGroups

            self._admin = KafkaGroups(
                self._started().bootstrap_servers, client_properties_of(self._started().directory)
            )
        return self._admin

    def _addresses(self) -> list[Address]:
        """Of the brokers that run."""
        return [self._target.address(broker) for broker in self._running()]

    def _started(self) -> LocalCluster:
        if self._local is None:
            raise ClusterError("the cluster is not started")
        return self._local


def _wait_for(find: Callable[[], Found | None], otherwise: str, timeout_s: float = ROLE_TIMEOUT_S) -> Found:
    """The first answer that is not None. Raises ClusterError."""
    deadline = time.monotonic() + timeout_s
    while (found := find()) is None:
        if time.monotonic() > deadline:
            raise ClusterError(f"{otherwise}, {timeout_s:g} s long")
        time.sleep(POLL_S)
    return found
