"""Who plays a history in one cluster: sends its requests, keeps their outcomes, waits for what happens in the cluster's own time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey, VersionRange
from tools.inspect.conformance.cluster import RETRY_S, Cluster, is_passing
from tools.inspect.conformance.normalising import Normaliser, Plain
from tools.inspect.conformance.requests import Body, commit_row, complete, requests
from tools.inspect.conformance.scene import Scene
from tools.inspect.conformance.variants import encoded, sized

MEMBER_TIMEOUT_MS = 30_000
"""Longer than a history takes on a busy machine."""
PASSING_TRIES = 100
BROKER_RESOURCE = 4


class Step(NamedTuple):
    name: str
    api_key: int
    version: int
    outcome: Plain


class NotServed(Exception):
    """One of the clusters does not have what the history needs, such as an API."""


class Actor:
    """`versions`: those of each API that both clusters have. `topic` and `group` are names of this history alone."""

    def __init__(
        self, name: str, cluster: Cluster, scene: Scene, normaliser: Normaliser, versions: Mapping[int, VersionRange]
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.scene = scene
        self.topic = self.group = f"{scene.run}-history-{name}"
        self.steps: list[Step] = []
        self._normaliser = normaliser
        self._versions = versions
        self._correlation_ids = itertools.count(1)

    async def step(
        self,
        name: str,
        api_key: int,
        body: Body,
        of: str = "",
        line: str = "",
        *,
        version: int | None = None,
        tries: int = PASSING_TRIES,
        elsewhere: bool = False,
    ) -> Any:
        """Sends the request and keeps its outcome. Returns the answer as kio reads it, or a text if there is none.

        Tries again while the broker only asks for patience, as a client does. `elsewhere`: asks a broker that does not serve it.
        """
        for _ in range(tries):
            answer = await self.ask(api_key, body, of, line, version=version, elsewhere=elsewhere)
            if not is_passing(answer):
                break
            await asyncio.sleep(RETRY_S)
        plain = answer if isinstance(answer, str) else self._normaliser.answer(answer)
        self.note(name, api_key, plain, version)
        return answer

    def plain(self, answer: Any) -> Plain:
        return self._normaliser.answer(answer)

    def note(self, name: str, api_key: int, outcome: Plain, version: int | None = None) -> None:
        """Keeps a fact that the history has learned by requests to `api_key`."""
        self.steps.append(Step(name, api_key, self.served(api_key).max if version is None else version, outcome))

    async def list_groups(self, name: str, body: Body, version: int | None = None) -> None:
        """A step: the groups of all brokers, since each lists those that it coordinates."""
        found = [
            self.plain(await self.ask(ApiKey.LIST_GROUPS, body, version=version, broker=broker))
            for broker in self.cluster.brokers
        ]
        groups = sorted((row for answer in found for row in answer["groups"]), key=lambda row: str(row["group_id"]))
        self.note(name, ApiKey.LIST_GROUPS, {**found[0], "groups": groups}, version)

    async def ask(
        self,
        api_key: int,
        body: Body,
        of: str = "",
        line: str = "",
        *,
        version: int | None = None,
        elsewhere: bool = False,
        broker: int | None = None,
    ) -> Any:
        """Like `step`, but keeps nothing. `broker`: the one to ask, whoever serves the request."""
        version = self.served(api_key).max if version is None else version
        frame = encoded(
            api_key,
            version,
            next(self._correlation_ids),
            "ottla-inspect",
            complete(messages.request_schema(api_key, version), body),
        )
        if broker is not None:
            address = self.cluster.address_of(broker)
        else:
            address = await self.cluster.address(requests()[api_key].where, of)
        if elsewhere:
            address = next(other for other in self.cluster.addresses() if other != address)
        return await self.cluster.outcome((address, line), api_key, version, sized(frame))

    def served(self, api_key: int) -> VersionRange:
        """Raises NotServed."""
        if api_key not in self._versions:
            raise NotServed(messages.api_name(api_key))
        return self._versions[api_key]

    def serve_at_most(self, newest: Mapping[int, int]) -> None:
        """Leaves out the versions of these APIs above those."""
        limited = {
            key: VersionRange(of.min, min(of.max, newest.get(key, of.max))) for key, of in self._versions.items()
        }
        self._versions = limited

    async def until(self, what: str, is_true: Callable[[], Awaitable[bool]]) -> None:
        """Raises AdminError after SETTLE_TIMEOUT_S."""
        await self.cluster.until(f"history {self.name}: {what}", is_true)

    # -- bodies -------------------------------------------------------------------------------------------------------

    def produce(self, records: bytes, *, transactional_id: str | None = None, acks: int = -1) -> Body:
        body = requests()[ApiKey.PRODUCE].body(self.scene)
        body["topic_data"][0].update(name=self.topic, topic_id=None)
        body["topic_data"][0]["partition_data"][0].update(records=records)
        return {**body, "transactional_id": transactional_id, "acks": acks}

    def fetch(self, offset: int, **more: Any) -> Body:
        body = requests()[ApiKey.FETCH].body(self.scene)
        body["topics"][0].update(topic=self.topic, topic_id=self.scene.topic_ids.get(self.topic))
        body["topics"][0]["partitions"][0].update(fetch_offset=offset)
        return {**body, **more}

    def list_offsets(self, timestamp: int, isolation_level: int = 0) -> Body:
        body = requests()[ApiKey.LIST_OFFSETS].body(self.scene)
        body["topics"][0].update(name=self.topic)
        body["topics"][0]["partitions"][0].update(timestamp=timestamp)
        return {**body, "isolation_level": isolation_level}

    def metadata(self) -> Body:
        return {"topics": [{"name": self.topic, "topic_id": None}], "allow_auto_topic_creation": False}

    async def make_topic(self, replicas: Sequence[Sequence[int]] | None = None) -> None:
        """Without a step. `replicas`: of each partition; None: two partitions at the home broker."""
        await self.cluster.create_topic(self.topic, replicas)
        await self.until_served()

    async def until_served(self) -> None:
        await self.cluster.until_known(self.topic)
        answer = await self.ask(ApiKey.METADATA, self.metadata())
        found = getattr(answer.topics[0], "topic_id", None)
        if found is not None:
            self.scene.topic_ids[self.topic] = found

        async def leads() -> bool:
            listed = await self.ask(ApiKey.LIST_OFFSETS, self.list_offsets(-1))
            return int(listed.topics[0].partitions[0].error_code) == ErrorCode.NONE

        await self.until("the new topic has a leader", leads)

    async def broker_setting(self, name: str) -> str | None:
        """The home broker's."""
        resource = {
            "resource_type": BROKER_RESOURCE,
            "resource_name": str(self.scene.home),
            "configuration_keys": [name],
        }
        answer = await self.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]})
        return next((row.value for row in answer.results[0].configs), None)

    async def until_coordinated(self, group: str) -> None:
        async def is_served() -> bool:
            answer = await self.ask(ApiKey.DESCRIBE_GROUPS, {"groups": [group]}, group)
            return not isinstance(answer, str) and int(answer.groups[0].error_code) in (
                ErrorCode.NONE,
                ErrorCode.GROUP_ID_NOT_FOUND,
            )

        await self.until("the group has a coordinator", is_served)


class Member:
    """One member of a group, the actor's if it is not named, with a connection of its own."""

    def __init__(self, actor: Actor, name: str, instance_id: str | None = None, group: str = "") -> None:
        self.actor = actor
        self.group = group or actor.group
        self.name = name
        self.member_id = ""
        self.generation = -1
        self.instance_id = instance_id

    def body(self, **more: Any) -> Body:
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            **more,
        }

    async def step(self, name: str, api_key: int, **more: Any) -> Any:
        return await self.actor.step(f"{self.name}: {name}", api_key, self.body(**more), self.group, line=self.name)

    async def join(self, name: str = "join", **more: Any) -> Any:
        """A member that is told its id joins with it."""
        settings = {
            "session_timeout": MEMBER_TIMEOUT_MS,
            "rebalance_timeout": MEMBER_TIMEOUT_MS,
            "protocol_type": "consumer",
            "protocols": [
                {"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"},
                {"name": "roundrobin", "metadata": b""},
            ],
            "reason": "history",
            **more,
        }
        answer = await self.step(name, ApiKey.JOIN_GROUP, **settings)
        if int(answer.error_code) == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            answer = await self.step(f"{name} with its id", ApiKey.JOIN_GROUP, **settings)
        self._note(answer)
        return answer

    def _note(self, answer: Any) -> None:
        if int(answer.error_code) == ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id

    async def sync(self, name: str = "sync", assignments: Mapping[str, bytes] | None = None) -> Any:
        rows = [{"member_id": member, "assignment": data} for member, data in (assignments or {}).items()]
        return await self.step(
            name, ApiKey.SYNC_GROUP, protocol_type="consumer", protocol_name="range", assignments=rows
        )

    async def commit(self, name: str, offset: int) -> Any:
        topic_id = self.actor.scene.topic_ids.get(self.actor.scene.topic)
        rows = [{"name": self.actor.scene.topic, "topic_id": topic_id, "partitions": [commit_row(offset)]}]
        return await self.step(name, ApiKey.OFFSET_COMMIT, topics=rows)

    async def is_rebalancing(self) -> bool:
        """Asks without a step."""
        answer = await self.actor.ask(ApiKey.HEARTBEAT, self.body(), self.group, line=self.name)
        return int(answer.error_code) == ErrorCode.REBALANCE_IN_PROGRESS

    async def leave(self, name: str) -> Any:
        row = {"member_id": self.member_id, "group_instance_id": self.instance_id, "reason": "history"}
        return await self.step(name, ApiKey.LEAVE_GROUP, members=[row])
