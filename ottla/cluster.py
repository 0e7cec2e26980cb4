"""`OttlaCluster`: brokers and ZooKeeper as real processes on this machine, for one test run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from ottla.owner_process import OttlaError, OwnerProcess
from ottla.users import User

Setting = str | int | float | bool


@dataclass(frozen=True)
class Fault:
    """A fault that happened. `broker`: whom it hit; None for ZooKeeper, for a `heal` of everything, and for a fault in single requests.

    As a context manager it is undone at the end of the block.
    """

    words: str
    broker: int | None
    cluster: OttlaCluster
    in_requests: bool = False

    def heal(self) -> None:
        """Undoes every fault of this victim, and waits until it serves; of a fault in single requests, only this one. Raises OttlaError."""
        if self.in_requests:
            self.cluster.ask("end_rule", words=self.words)
        elif self.broker is not None:
            self.cluster.heal(self.broker)
        else:
            self.cluster.fault("heal zookeeper")

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()


class OttlaCluster:
    """A cluster of its own, from `start` to `close`, which a `with` block calls. Broker ids start from 1.

    Nothing of it is left afterwards: neither processes, whatever ends this process, nor files, unless `keep` names their directory.
    All methods block, may be called by several threads, and raise OttlaError.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        settings: Mapping[str, Setting] = MappingProxyType({}),
        api_level: str | None = None,
        links: bool = False,
        secure: bool = False,
        keep: Path | str | None = None,
    ) -> None:
        """`settings`: Kafka's, for every broker. `links`: brokers and ZooKeeper reach each other through links that can be cut.

        `api_level`: whose APIs clients get, "3.9" or "4", the default (`broker.api.level`).
        `secure`: it has TLS, the users admin, alice and bob, and ACLs (docs/SECURITY.md): connect with the settings of `user`.
        `keep`: the directory of logs and data, which stay; an earlier cluster there that has ended is removed.
        """
        self._brokers = brokers
        self._settings = {key: _text(value) for key, value in settings.items()}
        if api_level is not None:
            self._settings["broker.api.level"] = api_level
        self._links = links
        self._secure = secure
        self._keep = None if keep is None else str(Path(keep).absolute())
        self._owner: OwnerProcess | None = None
        self._made: dict[str, Any] = {}

    def start(self) -> None:
        """Returns when all brokers serve. Warns of settings that the brokers do not know."""
        if self._owner is not None:
            raise OttlaError("this cluster is already started")
        self._owner = OwnerProcess()
        try:
            self._made = self._owner.ask(
                "start",
                brokers=self._brokers,
                settings=self._settings,
                links=self._links,
                secure=self._secure,
                keep=self._keep,
            )
        except BaseException:
            self.close()
            raise
        for warning in self._made["warnings"]:
            warnings.warn(f"a cluster of ottla: {warning}", stacklevel=2)

    def close(self) -> None:
        """Ends the cluster at once, and removes its files. A cluster that was not started, or has ended, stays as it is."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.end()

    def __enter__(self) -> OttlaCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # what it is

    @property
    def is_running(self) -> bool:
        """Whether it was started and not closed."""
        return self._owner is not None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,...` of all brokers. A broker keeps its port when it is killed and restarted."""
        return str(self._fact("bootstrap_servers"))

    @property
    def zookeeper_connect(self) -> str:
        """`host:port` of ZooKeeper."""
        return str(self._fact("zookeeper_connect"))

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """All brokers, also those that were killed."""
        return tuple(self._fact("broker_ids"))

    @property
    def directory(self) -> Path:
        """The run directory, with the logs of every server. `ottla timeline --dir`, `ottla inspect` and others read it."""
        return Path(self._fact("directory"))

    def address(self, broker: int) -> str:
        """`host:port` of one broker."""
        found = dict(self._fact("addresses")).get(str(broker))
        if found is None:
            raise OttlaError(f"there is no broker {broker}: the brokers are {', '.join(map(str, self.broker_ids))}")
        return str(found)

    # who has a role

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Waits until a broker that has not ended leads the partition, at most ten seconds; so do the next three."""
        return int(self.ask("leader_of", topic=topic, partition=partition))

    def follower_of(self, topic: str, partition: int = 0) -> int:
        """The first follower, in the order of the assignment, that has not ended."""
        return int(self.ask("follower_of", topic=topic, partition=partition))

    def controller(self) -> int:
        return int(self.ask("controller"))

    def coordinator_of(self, group: str) -> int:
        """The broker that coordinates this consumer group."""
        return int(self.ask("coordinator_of", group=group))

    def in_sync_replicas(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """The ISR, by Metadata of a running broker; empty if it does not know the partition."""
        return tuple(self.ask("in_sync_replicas", topic=topic, partition=partition))

    # faults

    def kill(self, broker: int) -> None:
        """SIGKILL. Returns when the process has ended."""
        self.fault(f"kill broker {broker}")

    def stop(self, broker: int) -> None:
        """SIGTERM: a clean stop, before which leaderships move away."""
        self.fault(f"stop broker {broker}")

    def restart(self, broker: int) -> None:
        """Stops the broker cleanly if it runs, and starts it with its port and data. Returns when it serves."""
        self.fault(f"restart broker {broker}")

    def pause(self, broker: int) -> None:
        """SIGSTOP: the broker stands still until `resume`."""
        self.fault(f"pause broker {broker}")

    def resume(self, broker: int) -> None:
        self.fault(f"resume broker {broker}")

    def isolate(self, broker: int, away_from: str = "peers,zookeeper") -> None:
        """Cuts the broker's links to `peers`, `zookeeper`, `controller` or `broker:ID`; several with a comma. Needs `links`."""
        self.fault(f"isolate broker {broker} from {away_from}")

    def heal(self, broker: int | None = None) -> None:
        """Undoes every fault of this broker, or of the whole cluster: starts, resumes, joins. Returns when all of it serves."""
        self.fault("heal" if broker is None else f"heal broker {broker}")

    def fault(self, words: str) -> Fault:
        """A fault in the words of `ottla fault` (docs/FAULTS.md): `kill leader of orders-0`, `pause controller for 5s`.

        Returns when it has happened. With `for TIME` it is undone after that time, while the test continues.
        """
        hit = self.ask("fault", words=words)
        return Fault(words, hit["broker"], self, hit["in_requests"])

    # users of a secured cluster

    def user(self, name: str) -> User:
        """`admin`, who may do everything; `alice`, who may do everything with topics and groups; `bob`, who may log in and nothing else."""
        return User(**self.ask("user", user=name))

    def add_user(self, name: str) -> User:
        """A new user, who may log in and nothing else. Returns when every broker lets the user in."""
        return User(**self.ask("add_user", user=name))

    def remove_user(self, name: str) -> None:
        """Nobody logs in as this user any longer, by SCRAM. Connections that are logged in stay. Returns when every broker refuses."""
        self.ask("remove_user", user=name)

    def allow(
        self,
        user: str,
        operation: str,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        cluster: bool = False,
    ) -> None:
        """Allows `Read`, `Write`, `Describe`, `All`, ... on one resource; `orders*` are all whose names begin so, `*` are all.

        It also takes back what `deny` said of the same. Returns when every broker knows it.
        """
        self._change_right(user, operation, "allow", topic, group, transactional_id, cluster)

    def deny(
        self,
        user: str,
        operation: str,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        cluster: bool = False,
    ) -> None:
        """The opposite of `allow`: denied, whatever else is allowed. It counts from the next request on, on open connections, too."""
        self._change_right(user, operation, "deny", topic, group, transactional_id, cluster)

    def expire_certificate(self, of: int | str) -> None:
        """The certificate of a broker (its id) or of a user has expired. Returns when the broker uses it, within some seconds.

        It counts for new connections: of clients, and of other brokers. `heal` makes all certificates valid again.
        """
        self.ask("expire_certificate", of=of)

    def renew_certificate(self, of: int | str) -> None:
        """Undoes `expire_certificate`."""
        self.ask("renew_certificate", of=of)

    def _change_right(
        self,
        user: str,
        operation: str,
        permission: str,
        topic: str | None,
        group: str | None,
        transactional_id: str | None,
        cluster: bool,
    ) -> None:
        about = {"topic": topic, "group": group, "transactional_id": transactional_id, "cluster": cluster}
        self.ask("change_right", user=user, operation=operation, permission=permission, resources=about)

    # contents

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, Setting] = MappingProxyType({}),
    ) -> str:
        """Returns the name when every running broker knows the topic and its leaders.

        Unless told otherwise, it has 3 replicas and `min.insync.replicas` 2, or as many as there are brokers: then the death of one
        broker loses nothing that was acknowledged with acks=all, and stops nobody.
        """
        texts = {key: _text(value) for key, value in configs.items()}
        self.ask(
            "create_topic", topic=topic, partitions=partitions, replication_factor=replication_factor, configs=texts
        )
        return topic

    def delete_topic(self, topic: str) -> None:
        self.ask("delete_topic", topic=topic)

    def keep_contents(self) -> None:
        """Topics, groups, users and rights that are there now survive the next `clear`."""
        self.ask("keep_contents")

    def clear(self) -> list[str]:
        """Heals the cluster, and deletes the topics and groups that were made since `keep_contents`. Returns what could not be deleted.

        Users and rights are again those of that moment.
        """
        return list(self.ask("clear"))

    def timeline(self, since_s: float | None = None) -> str:
        """What happened in the cluster, as `ottla timeline` tells it: all of it, or since a moment (`time.time()`)."""
        return str(self.ask("timeline", since_s=since_s))

    def ask(self, request: str, **arguments: Any) -> Any:
        """A request to the owner of the processes, by its name there."""
        if self._owner is None:
            raise OttlaError("this cluster is not started: call start(), or use it in a with block")
        return self._owner.ask(request, **arguments)

    def _fact(self, name: str) -> Any:
        if self._owner is None:
            raise OttlaError("this cluster is not started: call start(), or use it in a with block")
        return self._made[name]


def _text(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
