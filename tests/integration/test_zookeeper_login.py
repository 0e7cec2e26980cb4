"""Brokers that log in at ZooKeeper and set ACLs: nobody else changes their nodes, or reads those with secrets (CLI-5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from protocol.zk.access import ZooKeeperAccess
from protocol.zk.protection import ZooKeeperLogin
from protocol.zk.session import CreateOp, MultiFailed, SetOp, ZkError, ZooKeeperSession
from tests.conftest import CALM, ClusterFactory
from tests.support.invariants import ZooKeeperView
from tests.support.secured import replaces_a_killed_controller

pytestmark = pytest.mark.integration

LOGIN = ZooKeeperLogin("brokers", "the-secret-of-zookeeper")
SOON_S = 20.0


def test_only_brokers_change_nodes_and_read_secrets(new_cluster: ClusterFactory) -> None:
    settings = {
        **CALM,
        "zookeeper.digest.user": LOGIN.user,
        "zookeeper.digest.password": LOGIN.password,
        "zookeeper.set.acl": "true",
        "delegation.token.secret.key": "x",
    }
    cluster = new_cluster(brokers=2, overrides=settings, zookeeper=None)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("orders", 2, 2)])["orders"].result(30)
    user = UserScramCredentialUpsertion("alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret")
    for result in admin.alter_user_scram_credentials([user]).values():
        result.result(30)

    async def look() -> None:
        for login in (None, ZooKeeperLogin("others", "y")):
            zk = ZooKeeperSession(cluster.zookeeper_connect, session_timeout_ms=10_000, access=ZooKeeperAccess(login))
            await zk.start(10)
            try:
                assert sorted(await zk.children("/brokers/ids")) == ["1", "2"]
                await zk.get("/brokers/topics/orders")
                for path in ("/config/users", "/config/users/alice", "/config/brokers", "/delegation_token/tokens"):
                    with pytest.raises(ZkError, match="to another user only"):
                        await zk.children(path)
                await _all_refused(zk)
            finally:
                await zk.close()
        mine = ZooKeeperSession(cluster.zookeeper_connect, session_timeout_ms=10_000, access=ZooKeeperAccess(LOGIN))
        await mine.start(10)
        data, _ = await mine.get("/config/users/alice")
        assert b"SCRAM-SHA-256" in data
        await mine.close()

    asyncio.run(look())
    view = ZooKeeperView(cluster.zookeeper_connect)
    try:
        replaces_a_killed_controller(cluster, view, "orders", partitions=2)
    finally:
        view.close()
    logs = "".join((cluster.broker_directory(b) / "server.log").read_text() for b in cluster.broker_ids)
    assert LOGIN.password not in logs


async def _all_refused(zk: ZooKeeperSession) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: zk.set("/brokers/topics/orders", b"{}"),
        lambda: zk.set("/controller_epoch", b"9"),
        lambda: zk.create("/brokers/topics/evil", b"{}"),
        lambda: zk.create("/config/changes/config_change_", b"{}", sequence=True),
        lambda: zk.create("/admin/delete_topics/orders", b""),
        lambda: zk.delete("/brokers/ids/1"),
    ]
    for attempt in attempts:
        with pytest.raises(ZkError, match="to another user only"):
            await attempt()  # type: ignore[misc]
    for op in (CreateOp("/brokers/topics/evil", b""), SetOp("/brokers/topics/orders", b"{}")):
        with pytest.raises(MultiFailed, match="to another user only"):
            await zk.multi([op])
