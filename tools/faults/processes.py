"""The processes of a local cluster as victims of faults. Each fault is written to the cluster's fault log after it was carried out."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from protocol.conversation import rule as conversation
from protocol.conversation.rule import FAULT_SOCKET
from protocol.json_lines import ask
from protocol.zk.operations import ZkError
from protocol.zk.session import ZooKeeperSession
from protocol.zk.znodes import BrokerIdZNode
from tools.cluster.fault_log import now_ms
from tools.cluster.links.control import LinksControl, NoLinks
from tools.cluster.links.rules import ZOOKEEPER, Rule
from tools.cluster.local_cluster import ClusterError, LocalCluster
from tools.cluster.run_directory import RunDirectory
from tools.cluster.zookeeper import EmbeddedZooKeeper
from tools.cluster.zookeeper_place import place_of_brokers
from tools.failures import AdminError
from tools.faults import full_disk
from tools.faults.cluster import OF_REQUESTS, State
from tools.faults.record import RECORD, FaultRecord
from tools.faults.rule_socket import RuleSocket
from tools.faults.session_expiry import expire_session
from tools.faults.words import OF_LINKS, Breakage
from tools.wire.security import Security

ZOOKEEPER_TIMEOUT_S = 60.0
NO_RULES = (
    "its brokers take no rules about requests: they need broker.fault.injection=true, which `ottla cluster start` sets"
)
WHY_NO_RULES = "it is not ready yet, or has no broker.fault.injection=true"
NO_LINKS = "this cluster has no links to cut: `ottla cluster start --links` makes one that has"


@dataclass(frozen=True)
class Broker:
    """A broker as a victim. The methods raise ClusterError."""

    cluster: LocalCluster
    broker_id: int

    def state(self) -> State:
        if self.cluster.pid(self.broker_id) is None:
            return State.ENDED
        return State.PAUSED if self.cluster.is_paused(self.broker_id) else State.RUNNING

    def kill(self) -> None:
        self.cluster.kill(self.broker_id)

    def stop(self) -> None:
        self.cluster.stop_broker(self.broker_id)

    def start(self) -> None:
        self.cluster.start_broker(self.broker_id)

    def pause(self) -> None:
        self.cluster.pause(self.broker_id)

    def resume(self) -> None:
        self.cluster.resume(self.broker_id)

    def expire_session(self) -> None:
        """Ends the broker's session. Only ZooKeeper tells the broker."""
        zookeeper, began = _zookeeper(self.cluster), now_ms()
        try:
            owner = asyncio.run(self._session_id())
            if owner is None:
                raise ClusterError(f"broker {self.broker_id} is not registered, so it has no session")
            expire_session(zookeeper.address, owner, zookeeper.tls())
        except (AdminError, LookupError, OSError, ZkError) as problem:
            raise ClusterError(f"the session of broker {self.broker_id} was not ended: {problem}") from None
        self.cluster.fault_log.write("broker_session_ended", began, broker=self.broker_id)

    async def _session_id(self) -> int | None:
        place = place_of_brokers(self.cluster.directory)
        if place is None:
            return None
        session = ZooKeeperSession(place.connect, session_timeout_ms=10_000, access=place.access)
        await session.start(10)
        try:
            stat = await session.exists(BrokerIdZNode.path(self.broker_id))
        finally:
            await session.close()
        return None if stat is None else stat.ephemeral_owner

    def sever(self, breakage: Breakage) -> None:
        _links(self.cluster).sever(self.broker_id, breakage)

    def join(self, breakage: Breakage | None) -> None:
        if self.cluster.links is not None:
            _links(self.cluster).join(self.broker_id, breakage)

    def add_rule(self, rule: conversation.Rule) -> None:
        began = now_ms()
        self._rules.add(rule)
        self.cluster.fault_log.write("rule_made", began, broker=self.broker_id, rule=rule.id)

    def remove_rules(self, ids: Sequence[str] | None) -> None:
        if self.state() is not State.RUNNING:
            return
        began = now_ms()
        if gone := self._rules.remove(ids):
            self.cluster.fault_log.write("rules_removed", began, broker=self.broker_id, rules=gone)

    @property
    def _rules(self) -> RuleSocket:
        return RuleSocket(
            partial(ask, _rules_socket(self.cluster, self.broker_id)), f"broker {self.broker_id}", WHY_NO_RULES
        )

    def fill_disk(self) -> None:
        others = [
            directory
            for broker in self.cluster.broker_ids
            if broker != self.broker_id
            for directory in self.cluster.log_directories(broker)
        ]
        began = now_ms()
        full_disk.fill(f"broker {self.broker_id}", self.cluster.log_directories(self.broker_id), others)
        self.cluster.fault_log.write("disk_filled", began, broker=self.broker_id)

    def free_disk(self) -> None:
        if full_disk.empty(self.cluster.log_directories(self.broker_id)):
            self.cluster.fault_log.write("disk_emptied", broker=self.broker_id)
            if self.state() is not State.ENDED:
                self.stop()
            self.start()


@dataclass(frozen=True)
class ZooKeeper:
    """The embedded ZooKeeper as a victim. A stop is a kill, because all its data is in its transaction log."""

    cluster: LocalCluster
    broker_id = None

    def state(self) -> State:
        process = _zookeeper(self.cluster).process
        if process.pid() is None:
            return State.ENDED
        return State.PAUSED if process.is_paused() else State.RUNNING

    def kill(self) -> None:
        process, began = _zookeeper(self.cluster).process, now_ms()
        was_running = process.pid() is not None
        process.kill()
        if was_running:
            self.cluster.fault_log.write("zookeeper_killed", began)

    stop = kill

    def start(self) -> None:
        """Returns when it serves. Raises ZooKeeperError."""
        zookeeper = _zookeeper(self.cluster)
        began = now_ms()
        zookeeper.start(partitions=RunDirectory(Path(self.cluster.directory)).partitions())
        self.cluster.fault_log.write("zookeeper_started", began)
        zookeeper.wait_ready(ZOOKEEPER_TIMEOUT_S)

    def pause(self) -> None:
        began = now_ms()
        if _zookeeper(self.cluster).process.send(signal.SIGSTOP):
            self.cluster.fault_log.write("zookeeper_paused", began)

    def resume(self) -> None:
        began = now_ms()
        if _zookeeper(self.cluster).process.send(signal.SIGCONT):
            self.cluster.fault_log.write("zookeeper_resumed", began)

    def expire_session(self) -> None:
        raise ClusterError("ZooKeeper has no session of its own")

    def sever(self, breakage: Breakage) -> None:
        _links(self.cluster).sever(None, breakage)

    def join(self, breakage: Breakage | None) -> None:
        if self.cluster.links is not None:
            _links(self.cluster).join(None, breakage)

    def add_rule(self, rule: conversation.Rule) -> None:
        raise ClusterError("ZooKeeper has no requests of clients")

    def remove_rules(self, ids: Sequence[str] | None) -> None:
        """It has none."""

    def fill_disk(self) -> None:
        raise ClusterError("fill-disk is for brokers")

    def free_disk(self) -> None:
        """Its disk is never filled."""


@dataclass(frozen=True)
class _Links:
    """The links of a local cluster. The methods raise ClusterError, FaultError."""

    cluster: LocalCluster
    control: LinksControl

    def sever(self, victim: int | None, breakage: Breakage) -> None:
        rules = breakage.rules(victim, self.cluster.broker_ids)
        began = now_ms()
        try:
            self.control.add(rules)
        except NoLinks as problem:
            raise ClusterError(str(problem)) from None
        control = [rule for rule in rules if rule.only_control]
        for some in ([rule for rule in rules if not rule.only_control], control):
            if some:
                self.cluster.fault_log.write(
                    "links_broken",
                    began,
                    broker=victim,
                    links=str(breakage),
                    others=_ends(some),
                    direction=breakage.direction,
                    effects=breakage.effects,
                    only_control=some is control,
                )

    def join(self, victim: int | None, breakage: Breakage | None) -> None:
        """Starts the links if their process has ended; then there is nothing else to undo."""
        began = now_ms()
        try:
            if self.cluster.links_process is not None and self.cluster.links_process.pid() is None:
                self.cluster.start_links()
                self.cluster.fault_log.write("links_started", began)
                return
            broken = [rule.id for rule in self.control.rules() if rule.of == _node(victim)]
            if breakage is not None:
                meant = {rule.id for rule in breakage.rules(victim, self.cluster.broker_ids)}
                broken = [rule for rule in broken if rule in meant]
            if broken:
                self.control.remove(broken)
                words = None if breakage is None else str(breakage)
                self.cluster.fault_log.write("links_joined", began, broker=victim, links=words)
        except NoLinks as problem:
            raise ClusterError(str(problem)) from None


def _rules_socket(cluster: LocalCluster, broker_id: int) -> Path:
    return Path(cluster.directory) / f"broker-{broker_id}" / FAULT_SOCKET


def _node(victim: int | None) -> str:
    return ZOOKEEPER if victim is None else str(victim)


def _ends(rules: Sequence[Rule]) -> list[int | str]:
    """The other ends of these rules' links: ids of brokers in their order, then `zookeeper`."""
    names = {other for rule in rules for other in rule.others}
    brokers: list[int | str] = sorted(int(name) for name in names - {ZOOKEEPER})
    return [*brokers, ZOOKEEPER] if ZOOKEEPER in names else brokers


def _links(cluster: LocalCluster) -> _Links:
    """Raises ClusterError."""
    if cluster.links is None:
        raise ClusterError(NO_LINKS)
    return _Links(cluster, cluster.links)


def _zookeeper(cluster: LocalCluster) -> EmbeddedZooKeeper:
    """Raises ClusterError."""
    zookeeper = EmbeddedZooKeeper(Path(cluster.directory) / "zookeeper")
    if not zookeeper.exists():
        raise ClusterError(f"{cluster.directory} has no ZooKeeper of its own to harm")
    return zookeeper


@dataclass(frozen=True)
class ProcessCluster:
    """A local cluster, for faults of its processes."""

    cluster: LocalCluster

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return self.cluster.broker_ids

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def impossible(self) -> Mapping[str, str]:
        found = dict.fromkeys(OF_LINKS, NO_LINKS) if self.cluster.links is None else {}
        if not any(_rules_socket(self.cluster, broker).exists() for broker in self.broker_ids):
            found[OF_REQUESTS] = NO_RULES
        too_large = [full_disk.why_not(self.cluster.log_directories(broker)) for broker in self.broker_ids]
        if too_large and all(too_large):
            found["fill-disk"] = str(too_large[0])
        return found

    def drop_claims(self) -> None:
        for directory in self.cluster.directory.glob("claims-*"):
            shutil.rmtree(directory, ignore_errors=True)

    @property
    def record_file(self) -> Path:
        return self.cluster.directory / RECORD

    def shared_claims(self) -> str:
        try:
            return tempfile.mkdtemp(prefix="claims-", dir=self.cluster.directory)
        except OSError as problem:
            raise ClusterError(f"{self.cluster.directory} cannot be written: {problem.strerror}") from None

    def is_stopped(self) -> bool:
        """Whether somebody has stopped the cluster: nothing runs, and no fault is the reason. A heal must not start such a cluster.

        A fault in requests stops no process, and a stopped one has none.
        """
        if self.cluster.running():
            return False
        noted = FaultRecord(self.record_file).all()
        return not self.record_file.exists() or (bool(noted) and all(row.words.request is not None for row in noted))

    def session_s(self) -> float:
        """The brokers' `zookeeper.session.timeout.ms`, in seconds."""
        return self.cluster.session_timeout_ms() / 1000

    @property
    def security(self) -> Security:
        return self.cluster.security()

    def address(self, broker_id: int) -> tuple[str, int]:
        host, _, port = self.cluster.address(broker_id).rpartition(":")
        return host, int(port)

    def broker(self, broker_id: int) -> Broker:
        return Broker(self.cluster, broker_id)

    def zookeeper(self) -> ZooKeeper | None:
        return None if self.cluster.zookeeper is None else ZooKeeper(self.cluster)
