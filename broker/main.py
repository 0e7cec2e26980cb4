"""The composition root: builds a broker from its settings, starts and stops its parts in order (STA-1, STA-2).

start  log directories -> ZooKeeper -> cluster id -> ports bound -> control listener -> znode -> controller -> clients served
stop   leaderships moved away -> groups and transactions given up -> controller resigns -> waiters answered, clients closed -> logs flushed
       -> session closed

Only this module connects the parts with each other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import gc
import logging
import os
import platform
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from broker.admin.config_admin import ConfigAdmin
from broker.admin.quota_admin import QuotaAdmin, resolves
from broker.admin.scram_admin import ScramAdmin
from broker.admin.topic_admin import ZOOKEEPER_WAIT_MAX_S, TopicAdmin
from broker.apis.api_versions import answer_before_login
from broker.authorization.acl_store import AclStore
from broker.authorization.authorizer import authorizer_of
from broker.cluster import registration
from broker.cluster.assigned_partitions import AssignedPartitions
from broker.cluster.controlled_shutdown_client import ControlledShutdownClient
from broker.cluster.lease import LeadershipLease
from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.peer_watch import PeerWatch
from broker.cluster.producer_ids import ProducerIds
from broker.cluster.registration import BrokerIdInUse, Registration
from broker.cluster.suspected_leaders import SuspectedLeaders
from broker.control.confirmation import Confirmation
from broker.control.connections import ControlLogins
from broker.control.listener import ControlListener
from broker.fault_injection.injected_faults import InjectedFaults
from broker.groups.coordinator import GroupCoordinator
from broker.machine import Machine, this_machine
from broker.metrics import page
from broker.metrics.server import BrokerState, SessionStats
from broker.network.acceptor import Acceptor, AcceptorSettings, ConnectionCounts
from broker.network.connection import ClientConnection, Limits
from broker.network.connection_under_faults import ConnectionUnderFaults
from broker.network.login_gate import LOGIN_BYTES_MAX
from broker.network.request_channel import RequestChannel
from broker.network.request_metrics import RequestMetrics
from broker.process import descriptors, server_log, together
from broker.process.metrics import MetricsServer
from broker.process.server_log import ServerLogHandler
from broker.process.stopping import StopTime, end_process, unless_stopped
from broker.quotas.client_quotas import Quotas
from broker.quotas.connection_rates import ConnectionRates
from broker.quotas.creation_rates import CreationRates
from broker.recording.recorder import Recorder
from broker.recording.recording_page import PATH, RecordingPage
from broker.replication.isr_updates import IsrUpdates
from broker.replication.leadership_changes import YOUNGEST
from broker.replication.log_dirs.log_dir_events import LogDirEvents
from broker.replication.replica_manager import ReplicaManager, ReplicaServices
from broker.request_handler import RequestHandler
from broker.requests.context import ApiContext
from broker.requests.followers import is_of_follower
from broker.requests.long_answers import LongAnswers
from broker.requests.metadata_topics import MetadataTopics
from broker.security.certificate_names import BadRules, namer, read_rules
from broker.security.delegation_tokens import DelegationTokens, TokenLogin
from broker.security.jwks import Keys
from broker.security.login import Logins
from broker.security.oauth_bearer import Validate, validate_unsecured
from broker.security.scram_users import ScramUsers
from broker.security.signed_tokens import validate_signed
from broker.security.token_store import TokenLifetimes, TokenStore
from broker.settings import config_sources
from broker.settings.bearer import KeySource, SignedTokens, UnsecuredTokens
from broker.settings.config import (
    MAX_CONNECTIONS,
    BrokerConfig,
    ConfigError,
    connections_of_hosts,
    own_limits_of_listeners,
    super_users_in,
)
from broker.settings.dynamic_configs import NOTHING_GIVEN, DynamicConfigs, TopicOverrides
from broker.settings.listeners import listeners_of, metrics_listener
from broker.settings.sasl import BrokerSasl
from broker.settings.tls import BrokerTls
from broker.settings.zookeeper import access_of
from broker.settings.zookeeper import follow as follow_zookeeper_tls
from broker.storage.compaction.log_cleaner import CleanerSettings, LogCleaner
from broker.storage.directories.log_directory import LogDirectoryError
from broker.storage.log_manager import LogManager
from broker.storage.producers.log_producers import ProducerExpiration
from broker.storage.upkeep import LogSchedule
from broker.telemetry.client_telemetry import ClientTelemetry
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.peers import Peers
from broker.transactions.states import TransactionVersion
from broker.transactions.verification import CoordinatorVerifier
from controller.controller import Controller, ControllerSettings
from protocol import json_lines
from protocol.acls import CLUSTER_NAME, Operation, ResourceType
from protocol.failure_detection.connection_watch import ConnectionWatch
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey, ApiLevel
from protocol.kafka.features import TRANSACTION_VERSION, finalized
from protocol.kafka.framing import RequestHeader
from protocol.network_client import NetworkClient
from protocol.rpc.client import RESPONSE_BYTES_MAX, ControlClient
from protocol.topic_names import INTERNAL_TOPICS
from protocol.types import USER, BrokerInfo, Buffer, ClientSoftware, Endpoint, Principal, TopicPartition
from protocol.zk.session import SessionState, ZkError, ZooKeeperUnavailable
from protocol.zk.znodes import BrokerIdZNode, PartitionStateZNode

Result = TypeVar("Result")

log = logging.getLogger("broker")

EVENT_LOG_NAME = "events.jsonl"
METRICS_LISTENER = "metrics.listener"
METADATA_TIMEOUT_S = 10.0
DESCRIPTOR_LIMIT_LOOK_S = 1.0
FEW_CONNECTIONS = 100
"""If the limit of open files allows fewer client connections, the broker logs a warning."""
FIRST_REQUESTS = (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID, ApiKey.FIND_COORDINATOR)
"""Requests that nearly every client sends as soon as it is connected."""
UNCLEAN_KEY = "unclean.leader.election.enable"
GC_THRESHOLDS = (50_000, 5, 200)
"""Requests create many short-lived objects and no cycles: with Python's defaults the collector would run hundreds of times a second.
Now it scans at most 300,000 objects of the second generation, which takes 15 ms. One large request may create that many objects, and
they live until it is answered."""
THREAD_SWITCH_S = 0.0005
"""How long a computing thread may delay the loop each time that the loop returns from a system call. Python's default of 5 ms adds
tens of milliseconds to a request while a batch is unpacked."""
UMASK = 0o027
"""The least umask. Files contain records, offsets and clients' requests: the group cannot write them, and others cannot read them."""


class CannotListen(Exception):
    """A listener cannot use its address. The text names the address and the reason."""


class Broker:
    """One broker, from settings to `run`."""

    def __init__(self, config: BrokerConfig, machine: Machine, given: Mapping[str, str] = NOTHING_GIVEN) -> None:
        """`given`: the texts from which `config` was read. Raises ConfigError. Needs a running loop."""
        self._config = config
        self._machine = machine
        self._clock = clock = machine.clock
        self._listeners = listeners_of(config)
        self._tls = BrokerTls(
            config,
            filter(self._listeners.uses_tls, self._listeners.bound),
            self._certificates_changed,
            self._listeners.uses_sasl,
            (self._listeners.inter_broker, self._listeners.control_plane),
        )
        self._sasl = BrokerSasl(
            config,
            filter(self._listeners.uses_sasl, self._listeners.bound),
            (self._listeners.inter_broker, self._listeners.control_plane),
        )
        self._scram_users = ScramUsers()
        self._token_keys: dict[KeySource, Keys] = {}
        token_secret = config.delegation_token_secret_key or config.delegation_token_master_key
        self._tokens = DelegationTokens(token_secret) if token_secret else None
        self._logins_at = {name: self._logins(name) for name in self._listeners.client_names}
        self._names_of = {name: self._name_of(name) for name in self._listeners.client_names}
        self._events = machine.events
        self._watchdog = machine.watchdog
        self._metrics: MetricsServer | None = None
        self._request_metrics = RequestMetrics(clock.monotonic)
        self._session_stats = SessionStats()
        self._state = BrokerState.STARTING
        if config.metrics_listener:
            metrics_listener(config.metrics_listener)
        zookeeper = access_of(config)
        self._zookeeper_tls = zookeeper.tls
        self._zk = machine.open_zookeeper(config.zookeeper_connect, config.zookeeper_session_timeout_ms, zookeeper)
        self._network = self._open_control_client()
        shares = descriptors.shares_of(machine.descriptor_limit())
        self._filesystem = filesystem = machine.filesystem
        filesystem.spare.keep(shares.spare)
        filesystem.in_use.share = shares.files
        self._log_manager = LogManager(
            config.log_directories,
            config.topic_defaults(),
            filesystem,
            clock,
            schedule=LogSchedule.of(config),
            producer_expiration=_producer_expiration(config),
        )
        self._cleaner = LogCleaner(self._log_manager, clock, CleanerSettings.of(config), self._events.write)
        self._metadata = MetadataCache()
        self._lease = LeadershipLease(clock, config.zookeeper_session_timeout_ms)
        self._registration: Registration | None = None
        self._log_dir_events = LogDirEvents(self._zk, config.broker_id)
        self._replicas = ReplicaManager(
            ReplicaServices(
                config=config,
                clock=clock,
                log_manager=self._log_manager,
                metadata=self._metadata,
                isr_writer=IsrUpdates(self._zk, self._events),
                open_network_client=self._open_fetch_client,
                lease=self._lease,
                events=self._events,
                random=machine.random,
                own_broker_epoch=self._broker_epoch,
                on_leadership_change=self._leadership_changed,
                on_directory_failure=self._log_dir_events.announce,
                on_all_directories_failed=self._all_log_directories_failed,
            )
        )
        self._groups = GroupCoordinator(
            config, clock, asyncio.get_running_loop(), self._metadata, self._replicas, self._lease, self._events
        )
        self._metadata.on_deletion(self._groups.topics_deleted)
        self._producer_ids = ProducerIds(config.broker_id, self._zk)
        self._transactions = TransactionCoordinator(
            config,
            clock,
            asyncio.get_running_loop(),
            self._metadata,
            self._replicas,
            self._lease,
            self._events,
            self._producer_ids,
            self._open_peers(),
            AssignedPartitions(self._zk, may_delete=config.delete_topic_enable).of,
            self._transaction_version,
        )
        self._verifier = CoordinatorVerifier(config.broker_id, self._metadata, self._transactions, self._open_peers())
        self._replicas.appends.verification.verifier = self._verifier
        watch_control = partial(
            ConnectionWatch,
            tls=self._tls.of(self._listeners.control_plane),
            login=self._sasl.login_at(self._listeners.control_plane),
        )
        self._controller = Controller(
            ControllerSettings(
                broker_id=config.broker_id,
                control_listener=self._listeners.control_plane,
                unclean_leader_election_enable=config.unclean_leader_election_enable,
                auto_leader_rebalance_enable=config.auto_leader_rebalance_enable,
                leader_imbalance_check_interval_seconds=config.leader_imbalance_check_interval_seconds,
                leader_imbalance_per_broker_percentage=config.leader_imbalance_per_broker_percentage,
                delete_topic_enable=config.delete_topic_enable,
                fast_failure_detection=config.broker_fast_failure_detection,
            ),
            self._zk,
            self._network,
            clock,
            self._events,
            watch_connection=watch_control,
        )
        self._configs = DynamicConfigs(config, self._zk, clock, self._events, given)
        self._configs.on_broker_config = self._broker_config_changed
        self._configs.broker_epoch = self._broker_epoch
        if self._sasl.has_scram:
            self._configs.of_clients.users = self._scram_users
        self._quotas = Quotas(config, clock.monotonic)
        look_ups = asyncio.Semaphore(1)
        self._connection_rates = ConnectionRates(config, clock.monotonic, look_ups)
        self._creation_rates = CreationRates(
            config, clock.monotonic, self._listeners.client_names, self._listeners.replica_listener
        )
        self._telemetry = ClientTelemetry(config.telemetry_max_bytes, clock.monotonic)
        self._configs.of_clients.followers += (
            self._quotas,
            self._connection_rates,
            self._telemetry,
            self._groups.configs,
        )
        self._configs.on_topic_configs = self._topic_configs_changed
        self._configs.topics_here = self._log_manager.topics
        self._authorizer = authorizer_of(config)
        self._acls: AclStore | None = None
        if self._authorizer is not None:
            self._acls = AclStore(self._authorizer, self._zk, clock, self._events)
            self._authorizer.on_change = self._replicas.fetches.rights_changed
        self._token_store: TokenStore | None = None
        if self._tokens is not None:
            lifetimes = TokenLifetimes(
                config.delegation_token_max_lifetime_ms,
                config.delegation_token_expiry_time_ms,
                config.delegation_token_expiry_check_interval_ms / 1000,
            )
            self._token_store = TokenStore(self._tokens, lifetimes, self._zk, clock, ZOOKEEPER_WAIT_MAX_S)
        self._recorder = Recorder(
            config.broker_id, filesystem, clock, asyncio.get_running_loop(), self._directory_of_recordings
        )
        self._counts = ConnectionCounts(
            config.max_connections,
            config.max_connections_per_ip,
            shares,
            connections_of_hosts(config.max_connections_per_ip_overrides),
            self._max_at(config),
            look_ups,
        )
        if self._listeners.replica_listener in self._max_at(config):
            log.warning(
                "max.connections of %s has no effect: only brokers use it, and must always get through to each other",
                self._listeners.replica_listener,
            )
        self._shares = shares
        self._is_registered = asyncio.Event()
        self._control = ControlListener(
            self._replicas,
            self._broker_epoch,
            self._configs.load_topics,
            self._controller.controlled_shutdown,
            self._when_registered,
            self._log_dir_events.announce,
            self._creation_zxids,
            machine.keep_out_of_collections,
            Confirmation(self._zk, config.broker_id, self._replicas.refuse_controllers_before),
            self._events,
            self._tls_context(self._listeners.control_plane),
            self._control_logins(),
            partial(self._tls_refused, self._listeners.control_plane),
        )
        self._control.limit_connections(shares.control)
        self._acceptors: dict[str, Acceptor] = {}
        self._handler: RequestHandler | None = None
        self._faults = self._injected_faults() if config.broker_fault_injection else None
        self._fault_server: asyncio.Server | None = None
        self._suspected_leaders = SuspectedLeaders(self._metadata)
        self._peers: PeerWatch | None = None
        if config.broker_fast_failure_detection:
            self._peers = PeerWatch(
                self._metadata,
                self._suspected_leaders,
                config.broker_id,
                self._listeners.control_plane,
                watch_control,
            )
        self._cluster_id = ""
        self._stop = asyncio.Event()
        self._stop_time = StopTime(config.broker_stop_timeout_ms / 1000, clock.monotonic, machine.last_resort)
        self.unflushed = False
        """The time for the stop ended before all logs were flushed."""
        self._fatal: LogDirectoryError | BrokerIdInUse | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether a thread still opens or flushes logs after `run`. The interpreter would wait for it at exit."""
        return self.unflushed or self._log_manager.is_loading

    def hurry(self) -> None:
        """Ends the wait for the controller, which moves the leaderships away, if `run` is at that step."""
        self._stop_time.hurry()

    def server_log_failed(self, reason: str) -> None:
        """Reports in the event log that the server log cannot be written."""
        self._events.write("server_log_failed", reason=reason)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Starts, serves until `stop` is set, stops. Raises an exception, which `main` reports, if the broker cannot start or continue."""
        self._stop = stop
        try:
            if await unless_stopped(self._open(), stop):
                await self._serve(stop)
            else:
                log.info("stopped during the start")
        finally:
            self._stop_time.begin()
            try:
                await self._close()
            finally:
                self._stop_time.over()
        if self._fatal is not None:
            raise self._fatal

    async def _serve(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as background:
            tasks = [
                background.create_task(self._lease.run(self._zk)),
                background.create_task(self._log_manager.upkeep.run()),
                background.create_task(self._cleaner.run()),
                background.create_task(self._configs.run()),
                *([background.create_task(self._acls.run())] if self._acls is not None else []),
                *(background.create_task(work) for work in self._follow_tokens()),
                background.create_task(self._follow_descriptor_limit()),
                background.create_task(self._request_metrics.settle_regularly()),
                background.create_task(self._tls.follow()),
                background.create_task(follow_zookeeper_tls(self._zookeeper_tls)),
                *(background.create_task(keys.run()) for keys in self._token_keys.values()),
                *(background.create_task(work()) for work in self._machine.housekeeping),
            ]
            if await unless_stopped(self._join(stop), stop):
                await stop.wait()
            self._stop_time.begin()
            await self._leave()
            for task in tasks:
                task.cancel()

    def _follow_tokens(self) -> Sequence[Coroutine[Any, Any, None]]:
        store = self._token_store
        return (store.run(), store.expire_regularly(lambda: self._controller.is_active)) if store is not None else ()

    async def _open(self) -> None:
        """Opens everything that can fail: directories, ZooKeeper, ports."""
        self._watchdog.start()
        level = ApiLevel(self._config.broker_api_level)
        preloaded = asyncio.get_running_loop().run_in_executor(None, messages.preload, FIRST_REQUESTS, level)
        began = self._clock.monotonic()
        await self._log_manager.start()
        self._events.write("logs_opened", seconds=round(self._clock.monotonic() - began, 3))
        self._machine.keep_out_of_collections()
        await asyncio.gather(*(keys.start() for keys in self._token_keys.values()))
        await self._zk.start(self._config.zookeeper_connection_timeout_ms / 1000)
        await self._despite_losses(lambda: registration.prepare_paths(self._zk))
        await self._despite_losses(self._configs.encode_secrets_anew)
        await self._despite_losses(self._configs.start)
        await self._tls.load(self._configs.layers.effective)
        self._configs.on_tls = self._tls.take
        if self._acls is not None:
            await self._despite_losses(self._acls.start)
        if self._token_store is not None:
            await self._despite_losses(self._token_store.start)
        self._recorder.apply(self._configs.layers.effective)
        self._cluster_id = await self._despite_losses(lambda: registration.cluster_id(self._zk))
        self._log_manager.log_directories.check_meta(self._config.broker_id, self._cluster_id)
        await preloaded
        await self._bind(self._cluster_id)

    async def _despite_losses(self, step: Callable[[], Awaitable[Result]]) -> Result:
        """A step of the start, repeated when the connection to ZooKeeper is lost during it, as Kafka does."""
        return await self._zk.repeated(step, self._config.zookeeper_connection_timeout_ms / 1000)

    def _serve_metrics(self, listener: str, channel: RequestChannel) -> MetricsServer:
        host, port = metrics_listener(listener)
        measured = page.Measured(
            state=lambda: self._state,
            session=self._session_stats,
            requests=self._request_metrics,
            channel=channel,
            acceptors=self._acceptors,
            replicas=self._replicas,
            logs=self._log_manager,
            groups=self._groups.groups,
            transactions=self._transactions,
            quotas=self._quotas,
            telemetry=self._telemetry,
            controller=self._controller,
            partitions_max=self._config.metrics_max_partitions,
        )
        pages = {PATH: RecordingPage(self._recorder)}
        with _port_errors(Endpoint(METRICS_LISTENER, host, port)):
            return MetricsServer(host, port, self._watchdog.times, pages, page.sections(measured))

    async def _bind(self, cluster_id: str) -> None:
        config = self._config
        context = ApiContext(
            config=config,
            clock=self._clock,
            cluster_id=cluster_id,
            zookeeper=self._zk,
            metadata=self._metadata,
            metadata_topics=MetadataTopics(
                self._metadata, lambda: self._suspected_leaders.unreachable, INTERNAL_TOPICS
            ),
            replica_manager=self._replicas,
            log_manager=self._log_manager,
            fetches=self._replicas.fetches,
            topic_admin=TopicAdmin(config, self._zk, self._metadata, self._machine.random.randrange),
            configs=self._configs,
            config_admin=ConfigAdmin(
                config.broker_id,
                self._zk,
                self._metadata,
                self._configs,
                self._tls.check,
                self._telemetry,
                self._groups.configs,
            ),
            scram_admin=ScramAdmin(self._zk, self._configs),
            quota_admin=QuotaAdmin(self._zk, self._configs, resolves),
            quotas=self._quotas,
            producer_ids=self._producer_ids,
            controller=self._controller,
            suspected_leaders=self._suspected_leaders,
            groups=self._groups,
            transactions=self._transactions,
            replica_listener=self._listeners.replica_listener,
            long_answers=LongAnswers(self._clock.monotonic),
            recorder=self._recorder,
            authorizer=self._authorizer,
            acls=self._acls,
            tokens=self._token_store,
            audit=self._machine.audit,
            request_metrics=self._request_metrics,
            telemetry=self._telemetry,
        )
        self._handler = RequestHandler(context, self._request_metrics, context.api_level)
        channel = RequestChannel(
            asyncio.get_running_loop(),
            self._handler.handle,
            max_requests=config.queued_max_requests,
            max_large_bytes=config.queued_max_request_bytes,
            max_unsent_bytes=config.queued_max_response_bytes,
            end_turn=self._handler.end_turn,
            monotonic=self._clock.monotonic,
        )
        self._replicas.fetches.look_with(channel.at_end_of_turn)
        if config.metrics_listener:
            self._metrics = self._serve_metrics(config.metrics_listener, channel)
        ports: dict[str, int] = {}
        for name in self._listeners.client_names:
            acceptor = Acceptor(self._acceptor_settings(name), channel, self._clock, self._counts)
            endpoint = self._listeners.bound[name]
            with _port_errors(endpoint):
                ports[name] = await acceptor.bind(endpoint.host, endpoint.port)
            self._acceptors[name] = acceptor
        control = self._listeners.bound[self._listeners.control_plane]
        if self._listeners.is_control_open and not self._tls.wants_certificates(control.listener):
            log.warning(
                "the control listener is on all addresses, like %s: anyone who reaches it can control this broker; "
                "give it an address in the brokers' own network with listeners and control.plane.listener.name",
                self._listeners.inter_broker,
            )
        with _port_errors(control):
            ports[control.listener] = await self._control.start(control.host, control.port)
        self._listeners = self._listeners.with_ports(ports)
        socket = self._machine.fault_socket
        if self._faults is not None and socket is not None:
            self._fault_server = await json_lines.serve(socket, self._faults.answer)

    def _injected_faults(self) -> InjectedFaults:
        """Faults in the requests of clients."""
        metadata, monotonic = self._metadata, self._clock.monotonic

        def connections() -> list[ConnectionUnderFaults]:
            processors = [each for acceptor in self._acceptors.values() for each in acceptor.processors]
            return [c for each in processors for c in each.connections if isinstance(c, ConnectionUnderFaults)]

        def switch(is_on: bool) -> None:
            if self._handler is not None:
                self._handler.faults = faults.takes if is_on else None

        def changed(partitions: Sequence[TopicPartition]) -> None:
            for tp in partitions:
                if (state := metadata.partition(tp)) is not None:
                    faults.book.leaders.led(monotonic(), tp.topic, tp.partition, state.leader, state.leader_epoch)

        faults = InjectedFaults(monotonic, self._events.write, metadata.topic_name, connections, switch)
        metadata.on_change(changed)
        return faults

    def _max_at(self, config: BrokerConfig) -> dict[str, int]:
        """The limits of connections of single listeners."""
        return own_limits_of_listeners(config, self._listeners.client_names, MAX_CONNECTIONS)

    def _acceptor_settings(self, listener: str) -> AcceptorSettings:
        config = self._config
        sasl = self._sasl.of(listener)
        idle_s = config.connections_max_idle_ms / 1000 if config.connections_max_idle_ms >= 0 else None
        limits = Limits(
            frame_bytes_max=config.socket_request_max_bytes,
            in_flight_max=config.max_in_flight_requests_per_connection,
            frame_timeout_s=config.socket_frame_timeout_ms / 1000,
            idle_timeout_s=idle_s,
            answer_timeout_s=config.socket_response_timeout_ms / 1000,
            login_bytes_max=min(sasl.receive_bytes_max, LOGIN_BYTES_MAX) if sasl is not None else 0,
        )
        is_brokers = listener == self._listeners.inter_broker
        is_shared = len(self._listeners.client_names) == 1

        def throttle_ms(address: str) -> int:
            throttled_ms = self._connection_rates.throttle_ms(address)
            if throttled_ms:
                self._creation_rates.take_back(listener)
            return throttled_ms

        return AcceptorSettings(
            listener,
            config.num_network_threads,
            limits,
            is_limited=is_shared or not is_brokers,
            is_of_follower=partial(is_of_follower, self._metadata, config.broker_id) if is_shared else None,
            tls_context=self._tls_context(listener),
            name_of=self._names_of[listener],
            logins=self._logins_at[listener],
            failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
            wait_ms=partial(self._creation_rates.wait_ms, listener),
            # Brokers must always get through to each other.
            throttle_ms=throttle_ms if is_shared or not is_brokers else lambda address: 0,
            tls_refused=partial(self._tls_refused, listener),
            connection=ConnectionUnderFaults if self._faults is not None else ClientConnection,
        )

    def _tls_refused(self, listener: str, address: str, reason: str) -> None:
        self._machine.audit.handshake_refused(address, listener, reason)

    def _logins(self, listener: str, *, is_control: bool = False) -> Logins | None:
        """What logins on the listener need; None: there are none. `is_control`: only brokers log in there."""
        sasl = self._sasl.of(listener)
        if sasl is None:
            return None
        return Logins(
            sasl,
            self._scram_users,
            self._answer_before_login,
            self._machine.audit,
            self._validate_tokens(listener, sasl.tokens),
            self._clock.wall_ms,
            # A delegation token that somebody has in the name of a broker must not make him one.
            find_token=self._find_token if self._tokens is not None and not is_control else None,
            # The watches of other brokers send nothing, so their logins cannot end.
            are_for_ever=is_control,
        )

    def _transaction_version(self) -> TransactionVersion:
        level = ApiLevel(self._configs.layers.effective.broker_api_level)
        return TransactionVersion(finalized(level, TRANSACTION_VERSION))

    def _answer_before_login(self, header: RequestHeader, frame: Buffer) -> tuple[bytes, ClientSoftware | None]:
        level = ApiLevel(self._configs.layers.effective.broker_api_level)
        return answer_before_login(level, header, frame, self._configs.features_epoch)

    def _find_token(self, mechanism: str, token_id: str) -> TokenLogin | None:
        return self._tokens.login(mechanism, token_id, self._clock.wall_ms()) if self._tokens is not None else None

    def _validate_tokens(self, listener: str, tokens: SignedTokens | UnsecuredTokens | None) -> Validate | None:
        wall_ms = self._clock.wall_ms
        match tokens:
            case SignedTokens():
                keys = self._token_keys.setdefault(tokens.source, Keys(tokens.source))
                return lambda text: validate_signed(tokens, keys.keys, keys.missed, wall_ms(), text)
            case UnsecuredTokens():
                log.warning("listener %s takes tokens without a signature, so anybody can log in as anybody", listener)
                return lambda text: validate_unsecured(tokens, wall_ms(), text)
        return None

    def _control_logins(self) -> ControlLogins | None:
        logins = self._logins(self._listeners.control_plane, is_control=True)
        own = self._sasl.login_at(self._listeners.control_plane)
        if logins is None or own is None:
            return None
        delay_s = self._config.connection_failed_authentication_delay_ms / 1000
        authorizer, super_users = self._authorizer, super_users_in(self._config.super_users)

        def is_broker(user: str, address: str) -> bool:
            principal = Principal(USER, user)
            if user == own.username or str(principal) in super_users:
                return True
            return authorizer is not None and authorizer.grants(
                principal, address, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
            )

        return ControlLogins(logins, is_broker, delay_s)

    def _name_of(self, listener: str) -> Callable[[bytes], str] | None:
        """How the listener names clients by their certificates; None: it asks for none, or clients log in. Raises ConfigError."""
        tls = self._tls.of(listener)
        if tls is None or self._sasl.of(listener) is not None or not tls.wants_certificates:
            return None
        try:
            return namer(read_rules(tls.principal_mapping_rules))
        except BadRules as problem:
            raise ConfigError(f"ssl.principal.mapping.rules: {problem} (listener {listener})") from None

    def _tls_context(self, listener: str) -> Callable[[], ssl.SSLContext] | None:
        """Returns the context of the listener's next handshake; None: the listener is in the clear."""
        tls = self._tls.of(listener)
        return None if tls is None else lambda: tls.server_context

    def _certificates_changed(self, listener: str) -> None:
        self._events.write("certificates_changed", listener=listener)

    async def _join(self, stop: asyncio.Event) -> None:
        """Joins the cluster, then serves clients."""
        config = self._config
        broker = BrokerInfo(
            config.broker_id, -1, tuple(self._listeners.advertised.values()), config.broker_rack or None
        )
        try:
            BrokerIdZNode.decode(broker.id, BrokerIdZNode.encode(broker, 0), 0)
        except ValueError as error:
            raise ConfigError(f"advertised.listeners or broker.rack cannot be registered: {error}") from None
        self._registration = Registration(
            self._zk,
            broker,
            self._clock,
            self._events,
            self._registration_lost,
            self._registered,
            self._end_for,
        )
        await self._replicas.start()
        self._groups.start()
        self._transactions.start()
        self._zk.add_listener(self._session_changed)
        self._session_stats.changed(self._zk.state)
        await self._despite_losses(self._registration.start)
        self._lease.forget_session()  # an earlier one may have ended, in which nothing was led
        # Not earlier: the directories of a broker whose id was refused may belong to another broker.
        self._log_manager.note_disks(self._registration.epoch)
        self._log_manager.log_directories.ensure_meta(config.broker_id, self._cluster_id)
        await self._controller.start()
        await self._wait_for_metadata(stop)
        self._machine.keep_out_of_collections()
        for acceptor in self._acceptors.values():
            await acceptor.serve()
        names = self._listeners.client_names
        addresses = " ".join(str(self._listeners.advertised[name]) for name in names)
        self._state = BrokerState.RUNNING
        self._machine.say(f"ottla broker {config.broker_id} ready: {addresses}")

    async def _wait_for_metadata(self, stop: asyncio.Event) -> None:
        """Waits for the controller's first metadata, at most METADATA_TIMEOUT_S: clients must not see an empty cluster."""
        changed = asyncio.Event()
        remove = self._metadata.on_change(lambda _: changed.set())
        try:
            async with asyncio.timeout(METADATA_TIMEOUT_S):
                while self._metadata.broker(self._config.broker_id) is None and not stop.is_set():
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            log.warning(
                "no controller has sent this broker the cluster's metadata within %g s: serving clients anyway",
                METADATA_TIMEOUT_S,
            )
        finally:
            remove()

    async def _leave(self) -> None:
        """Moves this broker's leaderships away and answers waiting clients (STA-2)."""
        log.info("stopping")
        self._events.write("stopping")
        self._state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        self._replicas.begin_stop()
        is_known = self._broker_epoch() != registration.NO_EPOCH
        may_ask = self._config.controlled_shutdown_enable and self._fatal is None and is_known
        if may_ask and self._zk.state is SessionState.CONNECTED:
            await self._stop_time.hand_over(self._ask_to_leave())
        self._state = BrokerState.SHUTTING_DOWN
        step = self._stop_time.step
        await step("giving up the groups", self._groups.close())
        await step("giving up the transactions", self._close_transactions())
        if self._registration is not None:
            self._registration.stop_watching()
        if self._peers is not None:
            self._peers.close()
        for acceptor in self._acceptors.values():
            acceptor.stop_accepting()
        await step("resigning as controller", self._controller.stop())
        await step("closing the control listener", self._control.close())
        await step("stopping the replicas", self._replicas.shutdown())

    async def _ask_to_leave(self) -> None:
        # The request needs its own connection: this process may be the controller. Its LeaderAndIsr for this broker, for which the
        # answer waits, would be queued behind the request on the controller's connection.
        network = self._open_control_client()
        client = ControlledShutdownClient(
            self._config, self._zk, ControlClient(network), self._listeners.control_plane, self._broker_epoch
        )
        try:
            await client.controlled_shutdown()
        finally:
            network.close()

    async def _close(self) -> None:
        """Releases everything that was acquired, also after an incomplete start."""
        step = self._stop_time.step
        if self._registration is not None:
            self._registration.stop_watching()
        if self._peers is not None:
            self._peers.close()
        for acceptor in self._acceptors.values():
            acceptor.close()
        if self._handler is not None:
            await step("ending the requests", self._handler.close())
        if self._fault_server is not None and self._machine.fault_socket is not None:
            self._fault_server.close()
            self._machine.fault_socket.unlink(missing_ok=True)
        await step("giving up the groups", self._groups.close())
        await step("giving up the transactions", self._close_transactions())
        await step("resigning as controller", self._controller.stop())
        await step("closing the control listener", self._control.close())
        await step("announcing failed directories", self._log_dir_events.close())
        await step("closing the recording", self._recorder.close())
        self._network.close()
        # From here on the loop serves nobody, and threads that close ten thousand logs may delay it.
        self._watchdog.close()
        flushing = "flushing the logs (the next start recovers those that are not flushed)"
        self.unflushed = not await self._stop_time.flush(flushing, self._log_manager.shutdown())
        self._filesystem.spare.close()
        await self._stop_time.farewell("closing the ZooKeeper session", self._zk.close())
        if self._metrics is not None:
            self._metrics.close()
        self._events.write("stopped")
        self._events.close()

    async def _follow_descriptor_limit(self) -> None:
        """Applies and logs the shares of descriptors, at the start and whenever the limit of open files changes (`prlimit`)."""
        while True:
            shares = self._shares
            log.info(
                "the limit of open files is %d: at most %d connections of clients (max.connections=%d), %d of brokers",
                shares.limit,
                self._counts.clients_max,
                self._config.max_connections,
                shares.brokers,
            )
            if shares.clients < FEW_CONNECTIONS:
                log.warning(
                    "a limit of %d open files is too low for a broker: raise it (ulimit -n, LimitNOFILE)", shares.limit
                )
            while shares.limit == self._shares.limit:
                await asyncio.sleep(DESCRIPTOR_LIMIT_LOOK_S)
                shares = descriptors.shares_of(self._machine.descriptor_limit())
            self._shares = shares
            self._counts.share(shares)
            self._control.limit_connections(shares.control)
            self._filesystem.in_use.share = shares.files
            self._filesystem.spare.keep(shares.spare)

    def _directory_of_recordings(self) -> str | None:
        online = self._log_manager.log_directories.online()
        return online[0].path if online else None

    # -- how the parts are connected --------------------------------------------------------------------------------------

    def _broker_epoch(self) -> int:
        return self._registration.epoch if self._registration is not None else registration.NO_EPOCH

    def _session_changed(self, state: SessionState) -> None:
        self._events.write("zookeeper_session", state=state.value)
        self._session_stats.changed(state)
        if state is SessionState.EXPIRED:
            self._controller.on_session_expired()

    def _leadership_changed(self, tp: TopicPartition) -> None:
        self._groups.leadership_changed(tp)
        self._transactions.leadership_changed(tp)

    async def _close_transactions(self) -> None:
        await self._transactions.close()
        await self._verifier.close()

    async def _creation_zxids(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The zxid that created each partition's state znode; YOUNGEST without a znode: such a partition has no records to lose."""
        nodes = await self._zk.get_many([PartitionStateZNode.path(tp) for tp in partitions])
        return {tp: node[1].czxid if node is not None else YOUNGEST for tp, node in zip(partitions, nodes, strict=True)}

    def _registration_lost(self, reason: str) -> None:
        self._is_registered.clear()
        self._replicas.step_down_all(reason)

    async def _when_registered(self) -> None:
        while not self._is_registered.is_set():
            await self._is_registered.wait()

    async def _registered(self, epoch: int) -> None:
        self._is_registered.set()
        self._controller.on_session_restored()

    def _all_log_directories_failed(self) -> None:
        """Nothing is left to serve (LOG-6). The broker stops and ends its session, so that others lead."""
        directories = ", ".join(self._log_manager.offline_dirs)
        self._end_for(
            LogDirectoryError(
                f"all log directories have failed ({directories}), the broker has stopped: repair or replace a disk, then start it"
            )
        )

    def _end_for(self, reason: LogDirectoryError | BrokerIdInUse) -> None:
        """Stops this broker; `run` raises the reason."""
        self._fatal = reason
        self._stop.set()

    def _open_control_client(self) -> NetworkClient:
        return NetworkClient(
            self._clock,
            request_timeout_ms=self._config.controller_socket_timeout_ms,
            random=self._machine.random.random,
            response_bytes_max=RESPONSE_BYTES_MAX,
            tls=self._tls.of(self._listeners.control_plane),
            login=self._sasl.login_at(self._listeners.control_plane),
        )

    def _open_peers(self) -> Peers:
        """A separate connection for markers, which wait for their replication, and for verifications."""
        network = NetworkClient(
            self._clock,
            request_timeout_ms=self._config.request_timeout_ms,
            random=self._machine.random.random,
            tls=self._tls.of(self._listeners.inter_broker),
            login=self._sasl.login_at(self._listeners.inter_broker),
        )
        return Peers(self._metadata, self._listeners.inter_broker, network)

    def _open_fetch_client(self) -> NetworkClient:
        """A separate connection for each fetcher, so that a slow leader delays nobody else."""
        return NetworkClient(
            self._clock,
            request_timeout_ms=self._config.replica_socket_timeout_ms,
            random=self._machine.random.random,
            backoff_max_ms=max(self._config.replica_fetch_backoff_ms, 1),
            tls=self._tls.of(self._listeners.inter_broker),
            login=self._sasl.login_at(self._listeners.inter_broker),
        )

    def _broker_config_changed(self, config: BrokerConfig) -> None:
        """Applies settings of this broker, or of all brokers, that changed while it runs."""
        self._log_manager.update_defaults(config.topic_defaults())
        self._log_manager.upkeep.producer_expiration = _producer_expiration(config)
        self._cleaner.settings = CleanerSettings.of(config)
        self._replicas.update_throttles(config)
        self._replicas.appends.verification.is_enabled = config.transaction_partition_verification_enable
        self._replicas.update_fetchers(config.num_replica_fetchers)
        self._recorder.apply(config)
        self._counts.limit(
            config.max_connections,
            config.max_connections_per_ip,
            connections_of_hosts(config.max_connections_per_ip_overrides),
            self._max_at(config),
        )
        self._creation_rates.changed(config)
        self._controller.set_unclean_election_default(config.unclean_leader_election_enable)
        level = ApiLevel(config.broker_api_level)
        if self._handler is not None and level is not self._handler.level:
            self._handler.serve(level)
            # A client asks for ApiVersions once in each connection.
            for acceptor in self._acceptors.values():
                acceptor.end_clients(f"broker.api.level is {level.value} now")

    def _topic_configs_changed(self, topics: Mapping[str, TopicOverrides]) -> None:
        self._log_manager.update_topic_configs(topics)
        for topic, overrides in topics.items():
            if overrides.get(UNCLEAN_KEY, "").lower() == "true":
                self._controller.unclean_elections_allowed(topic)


def _producer_expiration(config: BrokerConfig) -> ProducerExpiration:
    return ProducerExpiration(config.producer_id_expiration_ms, config.producer_id_expiration_check_interval_ms / 1000)


@contextlib.contextmanager
def _port_errors(endpoint: Endpoint) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f"{endpoint.host or '*'}:{endpoint.port}"
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(
                f"port {endpoint.port} is in use: {endpoint.listener} cannot listen at {where}; stop the program there "
                f"or change {METRICS_LISTENER if endpoint.listener == METRICS_LISTENER else 'listeners'}"
            ) from None
        # asyncio's text repeats the address; the numbers of resolvers are negative.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise CannotListen(f"{endpoint.listener} cannot listen at {where}: {reason}") from None


async def serve(
    config: BrokerConfig, event_log_path: Path | None, given: Mapping[str, str], handler: ServerLogHandler
) -> None:
    """Runs a broker until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    broker = Broker(config, this_machine(event_log_path), given)

    def stop_requested(by: signal.Signals) -> None:
        if stop.is_set():
            log.info("%s: the broker is already stopping", by.name)
            if by is signal.SIGINT:
                broker.hurry()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested, number)
    handler.on_failure = lambda reason: loop.call_soon_threadsafe(broker.server_log_failed, reason)
    reporting = asyncio.create_task(handler.run())
    try:
        await broker.run(stop)
    finally:
        reporting.cancel()
        handler.on_failure = lambda reason: None
        handler.report_omitted()
    if broker.is_at_work:
        end_process(int(broker.unflushed))


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m broker", description="One ottla broker in the foreground.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="server.properties; KAFKA_* variables override it")
    parser.add_argument("--log-file", type=Path, metavar="FILE", help="log file, which is rotated; default: stderr")
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that overrides the file and the environment",
    )
    parser.add_argument(
        "--together",
        choices=("detached", "owned"),
        help="a broker for each request on standard input (broker/process/together.py); FILE is relative to its directory; owned: "
        "they end with this process",
    )
    options = parser.parse_args(arguments)
    if options.together and options.log_file is None:
        parser.error("--together needs --log-file")
    return options


def main(arguments: Sequence[str] | None = None, *, form: str = "plain Python") -> None:
    """Runs the command. If the broker cannot start, prints one line that says why, and exits with code 1.

    `form` is in the first line of the log (`broker.compiled`).
    """
    options = parse_arguments(arguments)
    if options.together:
        together.fork_for_each_request(options.log_file, is_owned=options.together == "owned")
        # Errors and warnings tell which of the files is wrong.
        options.config, options.log_file = options.config.absolute(), options.log_file.absolute()
    os.umask(os.umask(UMASK) | UMASK)
    try:
        handler = server_log.set_up(options.log_file)
        text = options.config.read_text(encoding="utf-8") if options.config is not None else None
        name = str(options.config) if options.config is not None else ""
        loaded = config_sources.load(text, name, os.environ, options.override)
        log.info("ottla on Python %s: %s", platform.python_version(), form)
        for warning in loaded.warnings:
            log.warning("%s", warning)
        event_log_path = options.config.absolute().parent / EVENT_LOG_NAME if options.config is not None else None
        descriptors.raise_limit()
        sys.setswitchinterval(THREAD_SWITCH_S)
        gc.set_threshold(*GC_THRESHOLDS)
        gc.collect()  # garbage of the imports
        uvloop.run(serve(loaded.config, event_log_path, loaded.given, handler))
    except (ConfigError, LogDirectoryError, ZooKeeperUnavailable, ZkError, BrokerIdInUse, CannotListen) as error:
        _fail(str(error))
    except UnicodeDecodeError as error:
        _fail(f"{options.config} is not UTF-8 (byte {error.start}): save it as UTF-8")
    except OSError as error:
        _fail(f"{error.filename or options.config}: {error.strerror or error}")
    except BaseExceptionGroup as group:
        known, others = group.split((ZkError, BrokerIdInUse, ConfigError, LogDirectoryError))
        if known is None or others is not None:
            log.critical("the broker ends because of unexpected errors", exc_info=True)
            sys.exit(1)
        _fail(str(_first(known)))
    except Exception:
        log.critical("the broker ends because of an unexpected error", exc_info=True)
        sys.exit(1)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def _fail(reason: str) -> None:
    server_log.say(f"ottla broker: {reason}")
    sys.exit(1)
