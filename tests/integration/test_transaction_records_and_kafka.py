"""`__transaction_state` between us and a real Kafka: its tool decodes what we write, and we continue what it wrote (TXN-1, FMT-3)."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from broker.process.clock import SystemClock
from broker.settings.config import TopicConfig
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log_manager import LogManager
from broker.transactions.records import (
    FLEXIBLE_VALUE,
    PLAIN_VALUE,
    TransactionsImage,
    encode_key,
    encode_value,
)
from broker.transactions.states import TransactionState, TransactionVersion
from broker.transactions.transaction import TransactionMetadata
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from protocol.topic_names import TRANSACTION_STATE_TOPIC
from protocol.types import TopicPartition
from tests.support.invariants import eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.swappable_broker import SwappableBroker
from tests.support.topics import create_topics, init_producer_id
from tests.support.wire import Wire

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

S = TransactionState
WRITTEN = {
    "empty": TransactionMetadata(5, 0, 60_000, S.EMPTY, updated_ms=1_700_000_000_000),
    "ongoing-ä": TransactionMetadata(2**40, 3, 1, S.ONGOING, frozenset((TopicPartition("t", 1),)), 7, 6),
    "committing": TransactionMetadata(
        6, 4, 9, S.PREPARE_COMMIT, frozenset((TopicPartition("u" * 249, 2**31 - 1),)), 7, 6
    ),
    "exhausted": TransactionMetadata(
        6, 2**15 - 1, 9, S.PREPARE_ABORT, frozenset(), 7, 6, 6, -1, 40, TransactionVersion.TV_2
    ),
    "aborted": TransactionMetadata(8, 2**15 - 1, 9, S.COMPLETE_ABORT, updated_ms=9, start_ms=8),
}
RECORD = re.compile(r"transaction_metadata::transactionalId=(.*) payload: ?(.*)$", re.MULTILINE)


def shown(metadata: TransactionMetadata | None) -> str:
    """As DumpLogSegments shows a value."""
    if metadata is None:
        return "<DELETE>"
    state = metadata.state.value
    partitions = ",".join(map(str, metadata.partitions))
    return (
        f"producerId:{metadata.producer_id},producerEpoch:{metadata.producer_epoch},state={state},"
        f"partitions=[{partitions}],txnLastUpdateTimestamp={metadata.updated_ms},txnTimeoutMs={metadata.timeout_ms}"
    )


@pytest.mark.parametrize("version", [PLAIN_VALUE, FLEXIBLE_VALUE])
def test_kafkas_tool_decodes_what_we_write(kafka_tools: KafkaTools, tmp_path: Path, version: int) -> None:
    """Kafka 3.9 reads the records of both levels."""

    async def write() -> None:
        defaults = TopicConfig(cleanup_policy="compact")
        manager = LogManager([str(tmp_path)], defaults, FileSystem(), SystemClock())
        await manager.start()
        log = manager.get_or_create(TopicPartition(TRANSACTION_STATE_TOPIC, 0), "AAAAAAAAAAAAAAAAAAAAWA", {})
        records: list[Any] = [
            (encode_key(name), encode_value(metadata, version), (), 5) for name, metadata in WRITTEN.items()
        ]
        records.append((encode_key("aborted"), None, (), 5))
        log.append_as_leader(memoryview(build_batch(records)), 0)
        await manager.shutdown()

    asyncio.run(write())
    files = sorted((tmp_path / f"{TRANSACTION_STATE_TOPIC}-0").glob("*.log"))
    output = kafka_tools.dump(files, "--transaction-log-decoder")
    expected = [(name, shown(metadata)) for name, metadata in WRITTEN.items()]
    assert RECORD.findall(output) == [*expected, ("aborted", shown(None))]


def described(bootstrap_servers: str, names: Collection[str]) -> dict[str, Any] | None:
    """Transactional id -> its state of DescribeTransactions; None while the coordinator loads."""
    host, port = bootstrap_servers.split(":")
    with Wire(int(port), host) as wire:
        rows = wire.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": list(names)}).transaction_states
    return {row.transactional_id: row for row in rows} if all(row.error_code == 0 for row in rows) else None


def test_we_continue_what_kafka_wrote(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    """One transaction was committed, one aborted, one is open."""
    with SwappableBroker(tmp_path, kafka_tools) as broker:
        broker.start("Kafka")
        create_topics(broker.bootstrap_servers, NewTopic("t", 2, 1))
        producers = {}
        for name in ("committed", "aborted", "open"):
            producer = producers[name] = Producer(
                {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name}
            )
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce("t", name, partition=1)
            producer.flush(30)
        producers["committed"].commit_transaction(30)
        producers["aborted"].abort_transaction(30)

        def are_complete() -> bool:
            """Kafka answers the end of a transaction before its markers are written."""
            rows = described(broker.bootstrap_servers, ("committed", "aborted"))
            return rows is not None and all(row.transaction_state.startswith("Complete") for row in rows.values())

        eventually(are_complete, "Kafka completes both transactions")
        broker.stop(signal.SIGTERM)
        image = TransactionsImage()
        for segment in sorted((broker.data / f"{TRANSACTION_STATE_TOPIC}-0").glob("*.log")):
            for _ in image.steps(segment.read_bytes()):
                continue
        assert image.skipped.total() == 0
        partitions = frozenset((TopicPartition("t", 1),))
        assert {name: (found.state, found.partitions) for name, found in image.metadata.items()} == {
            "committed": (S.COMPLETE_COMMIT, frozenset()),
            "aborted": (S.COMPLETE_ABORT, frozenset()),
            "open": (S.ONGOING, partitions),
        }
        broker.start("ottla", {TRANSACTION_STATE_TOPIC: 1})
        rows = eventually(
            lambda: described(broker.bootstrap_servers, image.metadata), "the transactional ids are served"
        )
        for name, metadata in image.metadata.items():
            assert rows[name].transaction_state == metadata.state.value
            assert (rows[name].producer_id, rows[name].producer_epoch) == metadata.producer
            assert {str(topic.topic): tuple(topic.partitions) for topic in rows[name].topics} == (
                {"t": (1,)} if metadata.partitions else {}
            )
        host, port = broker.bootstrap_servers.split(":")
        with Wire(int(port), host) as wire:
            answer = init_producer_id(wire, "committed")
        before = image.metadata["committed"]
        assert (answer.error_code, answer.producer_id) == (0, before.producer_id)
        assert answer.producer_epoch == before.producer_epoch + 1
