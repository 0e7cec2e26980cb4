"""A port before each broker of a cluster, and one that leads to any of them, at which clients begin.

    client --> --listen ------> the first broker that accepts a connection
    client --> port of broker 1 --> broker 1

The brokers are those that answers to Metadata name: the proxy's own, each second, and those of clients that pass. A broker keeps its port
and its rules, whether it runs or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import time
import uuid
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any

from protocol import json_lines
from protocol.conversation.leaders_before import LeadersBefore
from protocol.conversation.rule import BadRule, Rule
from protocol.conversation.rule_book import Live, RuleBook
from protocol.conversation.rule_lines import RuleLines
from protocol.kafka import by_schema, messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest, RequestHeader, is_flexible, skip_tagged_fields
from protocol.kafka.wire import ELEMENTS_MAX
from protocol.types import Address
from tools.admin.bootstrap import PORT_MAX, no_answer
from tools.cluster.ports import accepts_connections
from tools.cluster.processes import ClusterError
from tools.links.connection import Connection
from tools.links.frames import Frame
from tools.links.links_directory import Known, LinksDirectory
from tools.wire import frames
from tools.wire.client import Client
from tools.wire.connection import BrokerConnection

POLL_S = 1.0
ANSWER_TIMEOUT_S = 5.0
TURN_S = 0.005
"""So long a long answer is read without a pause."""
LEARNT_BYTES_MAX = 64 * 1024
"""Of answers that pass: what is in longer ones comes with the next poll, which reads with pauses."""
WITH_EPOCHS = 7
"""The version of Metadata from which on the leaders' epochs are known."""
TICK_S = 0.01
"""So much later than the end of a rule its connections are looked at: the clock of the loop is coarse."""
BACKLOG = 1024
NAME = "ottla-links"

log = logging.getLogger("links")


class Broker:
    """A broker behind its port. `address`: its own."""

    def __init__(
        self,
        broker: int,
        address: Address,
        listening: socket.socket,
        leaders: LeadersBefore,
        tell: Callable[..., None],
        rules_changed: Callable[[], None],
    ) -> None:
        self.id = broker
        self.address = address
        self.listening = listening
        self.port: int = listening.getsockname()[1]
        self.book = RuleBook(time.monotonic, leaders)
        self.lines = RuleLines(self.book, self._close_idle, rules_changed, check)
        self._taken_over: dict[str, Live] = {}
        self.is_refusing = False
        self.connections: set[Connection] = set()
        self.silent: dict[Connection, str] = {}
        """Connection -> the id of its rule."""
        self._tell = tell

    def take_over(self, live: Live) -> None:
        """A rule that the others had when it joined. It ends with theirs."""
        if live.rule.id not in self._taken_over:
            self._taken_over[live.rule.id] = self.book.take_over(live)

    def given(self) -> Sequence[Live]:
        """The rules that were given to this broker itself."""
        return [live for live in self.book.live if not self._has_taken_over(live)]

    def end_taken_over(self, given: Collection[str]) -> None:
        """Ends those that no broker was given any more."""
        self.book.remove(
            [live.rule.id for live in self.book.live if self._has_taken_over(live) and live.rule.id not in given]
        )
        self._taken_over = {id_: live for id_, live in self._taken_over.items() if id_ in given}

    def _has_taken_over(self, live: Live) -> bool:
        """Not a later rule with the same id, which was given to it."""
        return self._taken_over.get(live.rule.id) is live

    def refuses(self, why: str) -> None:
        """Says once that no connection can be made, until one is: clients only see that theirs ends."""
        if not self.is_refusing:
            log.warning(
                "broker %d at %s:%d accepts no connection: %s. Clients of its port are disconnected",
                self.id,
                *self.address,
                why,
            )
        self.is_refusing = True

    def tell(self, rule: Rule, header: RequestHeader, client: str) -> None:
        """Says that the rule has hit this request, unless it has said so often."""
        hits = self.book.hits_to_tell(rule)
        if hits is not None:
            self._tell(
                "request_fault",
                broker=self.id,
                rule=rule.id,
                hits=hits,
                api=messages.api_name(header.api_key),
                version=header.api_version,
                client_id=header.client_id,
                address=client,
            )

    def falls_silent(self, connection: Connection, rule: Rule) -> None:
        """Until the rule ends."""
        self.silent.setdefault(connection, rule.id)
        until = next((each.until for each in self.book.live if each.rule.id == rule.id), 0.0)
        if until < math.inf:
            asyncio.get_running_loop().call_later(max(until - time.monotonic(), 0) + TICK_S, self.end_silence)

    def end_silence(self) -> None:
        """Ends the connections whose rule is no longer in force."""
        live = {each.rule.id for each in self.book.live}
        for connection in [each for each, rule in self.silent.items() if rule not in live]:
            connection.close()

    def _close_idle(self) -> None:
        for connection in [each for each in self.connections if each.is_idle]:
            connection.close()


def check(rule: Rule) -> None:
    """Raises BadRule for what only a broker knows."""
    for what, is_named in (("principals", rule.principal), ("listeners", rule.listener)):
        if is_named:
            raise BadRule(f"the links do not know {what}, so the rule could hit nothing")
    if rule.of_brokers:
        raise BadRule("brokers reach each other without the links, so the rule could hit nothing")


class Proxy:
    """`host`, `port`: where clients begin; port 0: a free one. `advertised`: the host that they are told.

    `tell(kind, **fields)` is called with each hit. Use `start`, then `run`.
    """

    def __init__(
        self, directory: LinksDirectory, host: str, port: int, advertised: str, tell: Callable[..., None]
    ) -> None:
        self.connections: set[Connection] = set()
        self.brokers: dict[int, Broker] = {}
        self._directory = directory
        self._host, self._port, self._advertised = host, port, advertised
        self._tell = tell
        self._leaders = LeadersBefore(self._address_of)
        self._topics: dict[uuid.UUID, str] = {}
        self._deleted: set[str] = set()
        """Topics that the last answer about all topics did not have any more."""
        self._bootstrap: Sequence[Address] = ()
        self._version = 0
        self._client = Client(NAME)
        self._asked: BrokerConnection | None = None
        self._asked_at: Address | None = None
        self._last: Broker | None = None
        """The broker that has answered a poll last."""
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def listen(self) -> str:
        """`host:port` for clients."""
        return f"[{self._advertised}]:{self._port}" if ":" in self._advertised else f"{self._advertised}:{self._port}"

    def _address_of(self, broker: int) -> Address | None:
        """The address for clients."""
        known = self.brokers.get(broker)
        return None if known is None else (self._advertised, known.port)

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return self._topics.get(topic_id)

    # -- ports ----------------------------------------------------------------------------------------------------------

    async def start(self, bootstrap: Sequence[Address]) -> None:
        """Returns when clients can connect to all brokers. Raises ClusterError."""
        self._bootstrap = bootstrap
        answer = await self._discover(bootstrap)
        try:
            listening = self._bind(self._port)
        except (OSError, UnicodeError) as problem:
            raise ClusterError(
                f"--listen {self._host}:{self._port}: {getattr(problem, 'strerror', None) or problem}; choose another address"
            ) from None
        self._port = listening.getsockname()[1] if self._port == 0 else self._port
        try:
            for broker in sorted(answer.brokers, key=lambda broker: broker.node_id):
                self.moved(int(broker.node_id), str(broker.host), int(broker.port))
        except OSError as problem:
            listening.close()
            raise ClusterError(str(problem)) from None
        await self._learn(self._version, answer)
        await asyncio.gather(*self._tasks)
        await self._accept(listening, self._any_broker)

    def moved(self, broker: int, host: str, port: int) -> tuple[str, int]:
        """Where clients reach this broker. Follows it to a new address. Raises OSError if there is no port for a new one."""
        known = self.brokers.get(broker)
        if known is None:
            known = Broker(broker, (host, port), self._bind_next(), self._leaders, self._tell, self._rules_changed)
            self._take_over(known)
            self.brokers[broker] = known
            self._soon(self._serve(known))
            self._write()
        elif known.address != (host, port):
            known.address = (host, port)
            self._write()
        return self._advertised, known.port

    def _take_over(self, joins: Broker) -> None:
        """The rules of all brokers are also of one that joins, so that it is no way around them."""
        for broker in self.brokers.values():
            for live in broker.book.live:
                if live.rule.everywhere:
                    joins.take_over(live)

    def _rules_changed(self) -> None:
        """Who gives and removes rules need not know of brokers that have joined meanwhile."""
        given = {live.rule.id for broker in self.brokers.values() for live in broker.given()}
        for broker in self.brokers.values():
            broker.end_taken_over(given)
            broker.end_silence()

    def _bind(self, port: int) -> socket.socket:
        family, _, _, _, address = socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
        listening.setblocking(False)
        return listening

    def _bind_next(self) -> socket.socket:
        """The first free port behind that of `--listen`. Raises OSError."""
        for port in range(self._port + 1, PORT_MAX + 1):
            with contextlib.suppress(OSError):
                return self._bind(port)
        raise OSError(f"no port above {self._port} is free for a broker: choose a lower port for --listen")

    async def _serve(self, broker: Broker) -> None:
        """Accepts clients, and rules."""
        await self._accept(broker.listening, lambda: [broker])
        path = self._directory.rules_socket(broker.id)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._servers.append(await json_lines.serve(path, broker.lines.answer))
        except OSError as problem:
            raise ClusterError(f"{path}: {problem.strerror or problem}") from None

    async def _accept(self, listening: socket.socket, brokers: Callable[[], Sequence[Broker]]) -> None:
        def accepted() -> asyncio.Protocol:
            connection = Connection(self, brokers())
            self.connections.add(connection)
            self._soon(connection.run())
            return connection.client

        self._servers.append(await asyncio.get_running_loop().create_server(accepted, sock=listening))

    def _any_broker(self) -> Sequence[Broker]:
        """The one that has answered last is the first."""
        return sorted(self.brokers.values(), key=lambda broker: (broker is not self._last, broker.id))

    def _write(self) -> None:
        brokers = {broker.id: broker.address for broker in self.brokers.values()}
        try:
            self._directory.write(Known(self.listen, brokers))
        except ClusterError as problem:
            log.error("%s", problem)

    def _soon(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("%s", problem, exc_info=None if isinstance(problem, ClusterError) else problem)

    # -- the cluster ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follows the cluster until it is cancelled; then everything is closed."""
        try:
            while True:
                await asyncio.sleep(POLL_S)
                await self._poll()
        finally:
            for server in self._servers:
                server.close()
            for connection in list(self.connections):
                connection.close()
            for task in list(self._tasks):
                task.cancel()
            if self._asked is not None:
                self._asked.close()

    async def _poll(self) -> None:
        """Asks the broker that has answered last, else the others, else where the brokers were found first: all may have moved."""
        at = {broker.address: broker for broker in reversed(self._any_broker())}
        for address in [*reversed(at), *(each for each in self._bootstrap if each not in at)]:
            try:
                if self._asked is None or not self._asked.is_open or self._asked_at != address:
                    if self._asked is not None:
                        self._asked.close()
                    self._asked = await self._client.connect(address, timeout_s=ANSWER_TIMEOUT_S)
                    self._asked_at = address
                answer = await self._metadata(self._asked)
            except (OSError, UnicodeError, OverflowError, MalformedRequest) as problem:
                log.info("%s:%d does not tell the brokers: %s", *address, problem)
                if self._asked is not None:
                    self._asked.close()
                continue
            self._last = at.get(address)
            await self._learn(self._version, answer)
            if answer.brokers:  # else the broker has just started, and knows nothing yet
                self._forget({str(topic.name) for topic in answer.topics})
            return

    def _forget(self, topics: Collection[str]) -> None:
        """Of topics that two answers in a row did not have: a client may have heard of a new one after the first was asked for."""
        missing = {*self._topics.values(), *self._leaders.topics} - set(topics)
        gone = missing & self._deleted
        self._deleted = missing - gone
        if gone:
            self._leaders.forget(gone)
            self._topics = {id_: name for id_, name in self._topics.items() if name not in gone}

    async def _metadata(self, connection: BrokerConnection) -> Any:
        """The answer about all topics. Raises OSError, MalformedRequest."""
        key, version = ApiKey.METADATA, self._version
        body: dict[str, Any] = {"topics": None if version else [], "allow_auto_topic_creation": False}
        body |= dict.fromkeys(("include_cluster_authorized_operations", "include_topic_authorized_operations"), False)
        frame = frames.request_frame(key, version, NAME, body)
        answer = bytes(await connection.ask(frame, ANSWER_TIMEOUT_S))
        at = skip_tagged_fields(answer, 4) if is_flexible(key, version) else 4
        schema = messages.response_schema(key, version)
        return await _with_pauses(by_schema.reading(schema, answer, at, ELEMENTS_MAX))

    async def _discover(self, bootstrap: Sequence[Address]) -> Any:
        """The first answer to Metadata that names brokers. Raises ClusterError."""
        for address in bootstrap:
            try:
                asked = await self._client.connect(address, timeout_s=ANSWER_TIMEOUT_S)
                try:
                    versions = await self._client.ask_over(asked, ApiKey.API_VERSIONS, 0, {}, ANSWER_TIMEOUT_S)
                    newest = next((row.max_version for row in versions.api_keys if row.api_key == ApiKey.METADATA), 0)
                    self._version = min(newest, SUPPORTED[ApiKey.METADATA].max)
                    answer = await self._metadata(asked)
                finally:
                    asked.close()
            except (OSError, MalformedRequest) as problem:
                log.info("%s:%d: %s", *address, problem)
                continue
            if answer.brokers:
                return answer
        names = ",".join(f"{host}:{port}" for host, port in bootstrap)
        for host, port in bootstrap:
            if await asyncio.to_thread(accepts_connections, host, port, ANSWER_TIMEOUT_S):
                raise ClusterError(
                    f"{host}:{port} accepts connections, but nobody there names the brokers in the clear. The links speak neither TLS nor "
                    "SASL: --bootstrap-server must be a listener without them (PLAINTEXT)"
                )
        raise ClusterError(await asyncio.to_thread(no_answer, names))

    def learn_from(self, version: int, frame: Frame) -> None:
        """Leaders and ids of topics, from an answer to Metadata that passes."""
        if len(frame) > LEARNT_BYTES_MAX or version not in messages.versions_with_schemas(ApiKey.METADATA):
            return
        try:
            answer = messages.decode_response(ApiKey.METADATA, version, frame[4:])[1]
        except MalformedRequest:
            return
        by_schema.at_once(self._learning(version, answer))

    async def _learn(self, version: int, answer: Any) -> None:
        try:
            for broker in answer.brokers:
                self.moved(int(broker.node_id), str(broker.host), int(broker.port))
        except OSError as problem:
            log.error("%s", problem)
        await _with_pauses(self._learning(version, answer))

    def _learning(self, version: int, answer: Any) -> Generator[None, None, None]:
        now = time.monotonic()
        for topic in answer.topics:
            if topic.error_code or not topic.name:
                continue
            if (topic_id := getattr(topic, "topic_id", None)) is not None:
                self._topics[topic_id] = str(topic.name)
            for partition in topic.partitions:
                if version >= WITH_EPOCHS or self._version < WITH_EPOCHS:
                    self._leaders.led(
                        now,
                        str(topic.name),
                        int(partition.partition_index),
                        int(partition.leader_id),
                        int(getattr(partition, "leader_epoch", -1)),
                    )
            yield


async def _with_pauses(steps: Generator[None, None, Any]) -> Any:
    """The result of the steps; others get the loop after each TURN_S."""
    began = time.monotonic()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        if time.monotonic() - began > TURN_S:
            await asyncio.sleep(0)
            began = time.monotonic()
