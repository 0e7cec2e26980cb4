"""Brokers that answer as a test says: for the tools' requests to a cluster, without sockets or with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import pytest

from protocol.errors import KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey, VersionRange
from protocol.kafka.framing import parse_request_header, response_header
from tools.admin import kafka_admin
from tools.wire.cluster_requests import VERSIONS, Question

Answers = Callable[[Question], Mapping[str, Any] | Exception]
"""The newest version's fields of an answer, or an error to raise."""


def entity(api_key: ApiKey, body: Mapping[str, Any]) -> Any:
    """An answer as `tools.wire` gives it."""
    version = VERSIONS[api_key].max
    frame = response_header(api_key, version, 0) + messages.encode_response(
        api_key, version, {"throttle_time": 0, **body}
    )
    return messages.decode_response(api_key, version, frame)[1]


class FakeRequests:
    """In the place of ClusterRequests: `asked` has all questions."""

    def __init__(self, answers: Answers) -> None:
        self.asked: list[Question] = []
        self.attempts = 0
        self.bootstrap = [("127.0.0.1", 1)]
        self._answers = answers

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeRequests:
        monkeypatch.setattr(kafka_admin, "ClusterRequests", lambda *_: self)
        return self

    async def __aenter__(self) -> FakeRequests:
        self.attempts += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def ask(self, question: Question) -> Any:
        self.asked.append(question)
        for version in VERSIONS[question.api_key]:
            messages.encode_request(question.api_key, version, 0, "test", question.body)
        answer = self._answers(question)
        if isinstance(answer, Exception):
            raise answer
        return entity(question.api_key, answer)


class FakeBroker:
    """A server that speaks Kafka's protocol. `answers`: API -> its body, or None for no answer. `served`: in the place of VERSIONS."""

    def __init__(
        self,
        answers: Mapping[ApiKey, Mapping[str, Any] | None],
        served: Mapping[ApiKey, VersionRange] = VERSIONS,
        is_silent: bool = False,
    ) -> None:
        self.asked: list[tuple[ApiKey, int]] = []
        self._answers = answers
        self._served = served
        self._is_silent = is_silent
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return str(host), int(port)

    def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                header = parse_request_header(frame)
                api_key, version = ApiKey(header.api_key), header.api_version
                body = self._versions() if api_key is ApiKey.API_VERSIONS else self._answers.get(api_key)
                if api_key is not ApiKey.API_VERSIONS:
                    self.asked.append((api_key, version))
                if body is None or self._is_silent:
                    continue
                answer = response_header(api_key, version, header.correlation_id)
                answer += messages.encode_response(api_key, version, {"throttle_time": 0, **body})
                writer.write(len(answer).to_bytes(4, "big") + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _versions(self) -> Mapping[str, Any]:
        rows: Sequence[Mapping[str, Any]] = [
            {"api_key": int(key), "min_version": served.min, "max_version": served.max}
            for key, served in self._served.items()
        ]
        return {"error_code": 0, "api_keys": rows}


def metadata(brokers: Mapping[int, tuple[str, int]], controller: int, *topics: Mapping[str, Any]) -> dict[str, Any]:
    """An answer to Metadata."""
    nodes = [{"node_id": node, "host": host, "port": port, "rack": None} for node, (host, port) in brokers.items()]
    return {
        "brokers": nodes,
        "cluster_id": None,
        "controller_id": controller,
        "topics": topics,
        "cluster_authorized_operations": 0,
    }


def topic(name: str, *leaders: int | None) -> dict[str, Any]:
    """A topic of that answer: each partition's leader."""
    rows = [
        {
            "error_code": 0,
            "partition_index": number,
            "leader_id": -1 if leader is None else leader,
            "leader_epoch": 0,
            "replica_nodes": [1, 2],
            "isr_nodes": [1, 2],
            "offline_replicas": [],
        }
        for number, leader in enumerate(leaders)
    ]
    return {
        "error_code": 0,
        "name": name,
        "topic_id": None,
        "is_internal": False,
        "partitions": rows,
        "topic_authorized_operations": 0,
    }


def failing(error: KafkaError) -> Answers:
    return lambda _: error
