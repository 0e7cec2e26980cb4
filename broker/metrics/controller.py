"""The controller: kafka.controller KafkaController, ControllerStats, ControllerEventManager and ControllerChannelManager.

A broker that is not the active controller serves zeroes for the cluster, as Kafka does: dashboards add up all brokers.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from broker.process.exposition import COUNTER, GAUGE, family, labels, single, times_ms
from protocol.time_histogram import TimeHistogram


class ClusterNumbers(Protocol):
    """The part of the controller's model of the cluster that is read here. Its collections are only measured."""

    @property
    def topics(self) -> Mapping[str, Collection[object]]: ...

    @property
    def topics_to_delete(self) -> Collection[str]: ...

    @property
    def brokers(self) -> Collection[int]: ...

    def offline_partitions(self) -> int: ...

    def counting_imbalanced(self) -> Iterator[int]: ...

    def deletion_counts(self) -> tuple[int, int]: ...


class StatsOfController(Protocol):
    """`controller.stats.ControllerStats`."""

    @property
    def state(self) -> int: ...

    @property
    def queue_times(self) -> TimeHistogram: ...

    @property
    def named_times(self) -> Mapping[str, TimeHistogram]: ...

    @property
    def elections(self) -> Mapping[str, int]: ...

    @property
    def unclean_elections(self) -> int: ...


class MeasuredController(Protocol):
    """`controller.controller.Controller`."""

    @property
    def stats(self) -> StatsOfController: ...

    @property
    def cluster(self) -> ClusterNumbers | None: ...

    @property
    def queued_events(self) -> int: ...

    @property
    def queued_requests(self) -> Mapping[int, int]: ...


def cluster_section(controller: MeasuredController) -> Iterator[str]:
    cluster = controller.cluster
    is_active = cluster is not None
    topics = partitions = offline = imbalanced = to_delete = ineligible = brokers = replicas = 0
    if cluster is not None:
        sizes = [len(assigned) for assigned in list(cluster.topics.values())]
        topics, partitions, offline = len(sizes), sum(sizes), cluster.offline_partitions()
        to_delete, brokers = len(cluster.topics_to_delete), len(cluster.brokers)
        replicas, ineligible = cluster.deletion_counts()
        for count in cluster.counting_imbalanced():
            imbalanced += count
            yield ""
    for name, text, value in (
        ("activecontrollercount", "1 if this broker is the controller", int(is_active)),
        ("controllerstate", "What the controller is working on; 0: nothing", int(controller.stats.state)),
        ("globaltopiccount", "Topics of the cluster", topics),
        ("globalpartitioncount", "Partitions of the cluster", partitions),
        ("offlinepartitionscount", "Partitions without a leader", offline),
        ("preferredreplicaimbalancecount", "Partitions that their first replica does not lead", imbalanced),
        ("topicstodeletecount", "Topics that are being deleted", to_delete),
        ("replicastodeletecount", "Replicas of topics that are being deleted", replicas),
        ("replicasineligibletodeletecount", "Replicas whose deletion has to wait for their broker", ineligible),
        ("activebrokercount", "Registered brokers", brokers),
    ):
        yield from single(f"kafka_controller_kafkacontroller_{name}", GAUGE, text, value)


def controller_section(controller: MeasuredController) -> Iterator[str]:
    stats = controller.stats
    now = time.monotonic()
    yield from single(
        "kafka_controller_controllereventmanager_eventqueuesize",
        GAUGE,
        "Events that the controller has not handled",
        controller.queued_events,
    )
    yield from times_ms(
        "kafka_controller_controllereventmanager_eventqueuetimems",
        "Time that an event waits for the controller",
        (({}, [stats.queue_times]),),
        now,
    )
    queued = controller.queued_requests
    name = "kafka_controller_controllerchannelmanager"
    yield from single(f"{name}_totalqueuesize", GAUGE, "Control requests that are not answered", sum(queued.values()))
    yield from family(
        f"{name}_queuesize",
        GAUGE,
        "Control requests that are not answered, by broker",
        [(labels(broker_id=broker), size) for broker, size in queued.items()],
    )
    yield from single(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        COUNTER,
        "Partitions whose new leader was not in the ISR: records may be lost",
        stats.unclean_elections,
    )
    for event, times in stats.named_times.items():
        yield from times_ms(
            f"kafka_controller_controllerstats_{event}rateandtimems",
            f"Time of the controller's reactions: {event}",
            (({}, [times]),),
            now,
        )
    yield from family(
        "ottla_controller_leader_elections_total",
        COUNTER,
        "Partitions for which this controller elected another leader, by reason",
        [(labels(reason=reason), count) for reason, count in list(stats.elections.items())],
    )
