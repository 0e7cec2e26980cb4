"""What a request handler needs to serve every API: a real coordinator and replica manager, ZooKeeper in memory, a fake controller."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from broker.admin.config_admin import ConfigAdmin
from broker.admin.quota_admin import QuotaAdmin, resolves
from broker.admin.scram_admin import ScramAdmin
from broker.admin.topic_admin import TopicAdmin
from broker.authorization.acl_store import AclStore
from broker.authorization.authorizer import Authorizer
from broker.cluster.producer_ids import ProducerIds
from broker.cluster.suspected_leaders import SuspectedLeaders
from broker.process.event_log import EventLog
from broker.quotas.client_quotas import Quotas
from broker.requests.context import ApiContext
from broker.requests.long_answers import LongAnswers
from broker.requests.metadata_topics import MetadataTopics
from broker.settings.config import BrokerConfig
from broker.settings.dynamic_configs import DynamicConfigs
from protocol.topic_names import OFFSETS_TOPIC
from tests.support.api_world import FakeController
from tests.support.group_cluster import GroupCluster
from tests.support.transaction_cluster import coordinator_of


def context_of(
    cluster: GroupCluster,
    session: Any,
    config: BrokerConfig,
    monotonic: Callable[[], float],
    authorizer: Authorizer | None = None,
) -> ApiContext:
    """Of broker 1, with a session of ZooKeeper. `monotonic` tells how long a step of a long answer takes."""
    node = cluster.nodes[1]
    configs = DynamicConfigs(config, session, cluster.time, EventLog(None, cluster.time))
    suspected_leaders = SuspectedLeaders(node.metadata)
    controller: Any = FakeController()
    recorder: Any = SimpleNamespace(recording=None)
    return ApiContext(
        config=config,
        clock=cluster.time,
        cluster_id="c",
        zookeeper=session,
        metadata=node.metadata,
        metadata_topics=MetadataTopics(node.metadata, lambda: suspected_leaders.unreachable, (OFFSETS_TOPIC,)),
        replica_manager=node.manager,
        log_manager=node.logs,
        fetches=node.manager.fetches,
        topic_admin=TopicAdmin(config, session, node.metadata, Random(1).randrange),
        configs=configs,
        config_admin=ConfigAdmin(1, session, node.metadata, configs),
        scram_admin=ScramAdmin(session, configs),
        quota_admin=QuotaAdmin(session, configs, resolves),
        quotas=Quotas(config, cluster.time.monotonic),
        producer_ids=ProducerIds(1, session),
        controller=controller,
        suspected_leaders=suspected_leaders,
        groups=cluster.coordinators[1],
        transactions=coordinator_of(node, cluster.time),
        long_answers=LongAnswers(monotonic),
        replica_listener=None,
        recorder=recorder,
        authorizer=authorizer,
        acls=AclStore(authorizer, session, cluster.time, EventLog(None, cluster.time)) if authorizer else None,
    )
