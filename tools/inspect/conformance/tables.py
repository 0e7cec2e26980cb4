"""Histories that are tables: tables.yaml has the requests and explains its rows; here is what they find in a cluster."""

from __future__ import annotations

import asyncio
import json
import struct
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from tools.inspect.conformance.actor import Actor, Member, NotServed
from tools.inspect.conformance.requests import Body, Names, commit_row, filled, requests
from tools.inspect.conformance.scene import Where

TABLES = Path(__file__).with_name("tables.yaml")
GROUPS_TOPIC = "__consumer_offsets"
TOPIC, TOPIC_SOURCE = 2, 1
"""DescribeConfigs: a topic, and a setting of its own."""
LONG = 10_000
MEMBERS_MAX = 2
UNKNOWN_ID = uuid.UUID("7623a1bd-9572-413f-afe0-01f060ec7bc7")


async def group_answers(actor: Actor) -> None:
    """All group APIs: groups with a member, a static member, two members, only offsets, and without anything."""
    scene = actor.scene
    subscription = struct.pack(">hih", 0, 1, len(scene.topic)) + scene.topic.encode() + struct.pack(">i", -1)
    protocols: Body = {"protocols": [{"name": "range", "metadata": subscription}], "session_timeout": 600_000}

    def group(name: str) -> str:
        if name in ("new", "second"):
            # Kafka lists such a group, of which no member has joined, until its next start.
            return scene.at(len(name)).fresh
        return actor.group + "-" + ("x" * LONG if name == "long" else name) if name else ""

    async def member(of: str, instance: str | None = None) -> Member:
        await actor.until_coordinated(group(of))
        found = Member(actor, of, instance, group(of))
        await found.join(**protocols)
        await found.sync(assignments={found.member_id: b"all"})
        return found

    live, static, first = await member("live"), await member("static", "i"), await member("full")
    second = Member(actor, "second", group=group("full"))
    joining = asyncio.create_task(second.join(**protocols))
    await actor.until("the second member has joined", first.is_rebalancing)
    await first.join("join again", **protocols)
    await joining
    await first.sync("sync again")
    await second.sync()
    actor.steps.clear()
    topics = {"read": scene.topic, "other": scene.scratch, "nope": scene.unknown, "bad": f"{scene.run}/b"}
    await actor.until_coordinated(group("idle"))
    idle = [{"name": scene.topic, "partitions": [commit_row(10), commit_row(11) | {"partition_index": 1}]}]
    idle.append({"name": scene.scratch, "partitions": [commit_row(20)]})
    body = requests()[ApiKey.OFFSET_COMMIT].body(scene) | {"group_id": group("idle"), "topics": idle}
    await actor.ask(ApiKey.OFFSET_COMMIT, body, group("idle"))
    await note_the_topic_of_groups(actor)

    def named(name: str) -> Any:
        members = {"LIVE": live.member_id, "STATIC": static.member_id}
        return members.get(name) or topics.get(name) or group(name)

    is_limited = await actor.broker_setting("group.max.size") == str(MEMBERS_MAX)
    rows = [row for row in table("group-answers") if row.get("at") != "full" or is_limited]
    await play(actor, rows, named, group)


async def note_the_topic_of_groups(actor: Actor) -> None:
    answer = await actor.ask(ApiKey.METADATA, {"topics": [{"name": GROUPS_TOPIC}]})
    (topic,) = answer.topics
    found = {"is_internal": topic.is_internal, "replicas": [len(row.replica_nodes) for row in topic.partitions]}
    actor.note("the topic of the groups", ApiKey.METADATA, found)
    resource = {"resource_type": TOPIC, "resource_name": GROUPS_TOPIC, "configuration_keys": None}
    described = await actor.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]})
    own = {row.name: row.value for row in described.results[0].configs if row.config_source == TOPIC_SOURCE}
    actor.note("its own settings", ApiKey.DESCRIBE_CONFIGS, own)


async def partition_answers(actor: Actor) -> None:
    """The APIs that change topics and partitions, at the controller and elsewhere. Needs three brokers."""
    brokers = three_brokers(actor)
    first, second, third = brokers
    await actor.make_topic([[first, second], [second, third]])
    names = {"topic": actor.topic, "nope": actor.scene.unknown, "unknown-id": UNKNOWN_ID}
    names["bad"] = f"{actor.scene.run}/b"
    names |= dict(zip(("first", "second", "third"), brokers, strict=True))
    await play(actor, table("partition-answers"), names.__getitem__, lambda _: "")


def three_brokers(actor: Actor) -> list[int]:
    """The home broker and the next two. Raises NotServed."""
    ids = sorted(actor.cluster.brokers)
    if len(ids) < 3:
        raise NotServed("a cluster of three brokers")
    at = ids.index(actor.scene.home)
    return (ids[at:] + ids[:at])[:3]


def table(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = yaml.safe_load(TABLES.read_text())[name]
    return rows


async def play(actor: Actor, rows: Sequence[Mapping[str, Any]], named: Names, group: Callable[[str], str]) -> None:
    """A step for each row and version. No request is tried again: a refusal that clients retry may be the right answer."""
    keys = {messages.api_name(key): key for key in requests()}
    seen: Counter[str] = Counter()
    for row in rows:
        elsewhere = row.get("at", "").startswith("!")
        if elsewhere and len(actor.cluster.brokers) == 1:
            continue
        api_key, at = keys[row["api"]], row.get("at")
        of = group(at.removeprefix("!")) if at else ""
        if of and not elsewhere:
            await actor.until_coordinated(of)
        change = {field: filled(value, named) for field, value in row.items() if field not in ("api", "versions", "at")}
        served = actor.served(api_key)
        for version in row.get("versions", range(served.min, served.max + 1)):
            if not served.min <= version <= served.max:
                continue
            body = well_formed(actor, api_key, at, of) | change
            if api_key == ApiKey.OFFSET_FETCH:
                asked = change.get("groups", [of])
                body["groups"] = [{"group_id": each, "topics": body["topics"]} for each in asked]
            shown = {field: value for field, value in row.items() if field not in ("api", "versions")}
            name = f"{row['api']} v{version} {json.dumps(shown)}"
            seen[name] += 1
            name += f" #{seen[name]}" if seen[name] > 1 else ""
            if api_key == ApiKey.LIST_GROUPS:
                await actor.list_groups(name, body, version)
                continue
            await actor.step(name, api_key, body, of, version=version, tries=1, elsewhere=elsewhere)


def well_formed(actor: Actor, api_key: int, at: str | None, of: str) -> Body:
    """The request of a client without a member id, to the group `of`."""
    request = requests()[api_key]
    body = request.body(actor.scene)
    if request.where is Where.GROUP and at is not None:
        body |= {"group_id": of, "member_id": ""}
    return body
