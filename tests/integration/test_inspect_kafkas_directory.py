"""`ottla inspect log` and `verify` over what a real Kafka 3.9 wrote: nothing is wrong there, so nothing may be found (FMT-3).

Topics that rolled, were compacted, shortened by DeleteRecords, written by idempotent and by transactional producers with commits
and aborts; Kafka's own `__transaction_state` and `__consumer_offsets`; producer snapshots, tombstones, a deleted topic. Looked at
while Kafka runs, after it stopped cleanly, after it was killed, and after it has recovered.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.storage.checkpoints import HIGH_WATERMARKS
from broker.storage.directories.log_directory import LogDirectory, LogDirectoryError
from broker.storage.disk.filesystem import FileSystem
from tests.support.invariants import eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.swappable_broker import SwappableBroker
from tests.support.topics import create_topics
from tools.cli import main

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL = {"segment.bytes": "12000", "index.interval.bytes": "500"}
TOPICS = {
    "plain": SMALL,
    "compacted": SMALL
    | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"},
    "transactions": SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    "append-time": SMALL | {"message.timestamp.type": "LogAppendTime"},
    "deleted": SMALL,
    "idle": {},
}
OVERRIDES = {
    "log.cleaner.backoff.ms": "100",
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}


def producer(broker: SwappableBroker, **settings: Any) -> Producer:
    own = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 2, "log_level": 2} | own)


def write(broker: SwappableBroker) -> None:
    for codec in CODECS:
        for topic in ("plain", "compacted", "append-time"):
            writer = producer(broker, enable_idempotence=True, compression_type=codec, batch_num_messages=20)
            for number in range(250):
                value = None if number % 9 == 0 else b"%d " % number + os.urandom(60)
                writer.produce(topic, value, b"key-%d" % (number % 12))
            assert writer.flush(30) == 0
    for name in ("one", "two"):
        writer = producer(broker, transactional_id=f"{name}-{uuid.uuid4()}", batch_num_messages=5)
        writer.init_transactions(30)
        for turn in range(20):
            writer.begin_transaction()
            for number in range(12):
                writer.produce("transactions", b"%d " % number + os.urandom(60), b"key-%d" % (number % 7))
            writer.flush(30)
            if turn % 3:
                writer.commit_transaction(30)
            else:
                writer.abort_transaction(30)


def make(broker: SwappableBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
    create_topics(broker.bootstrap_servers, *(NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()))
    producer(broker).produce("deleted", b"value")
    write(broker)
    admin.delete_topics(["deleted"])["deleted"].result(30)
    for shortened in admin.delete_records([TopicPartition("append-time", 0, 333)]).values():
        shortened.result()
    group = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers", "log_level": 2})
    try:
        group.commit(offsets=[TopicPartition("plain", 0, 100)], asynchronous=False)
    finally:
        group.close()


def is_compacted(broker: SwappableBroker, *topics: str) -> Callable[[], bool]:
    def check() -> bool:
        found = [broker.data / f"{topic}-0" / ("0" * 20 + ".log") for topic in topics]
        try:
            return all(path.stat().st_size < 11000 for path in found)
        except FileNotFoundError:  # the old one is renamed before the new one
            return False

    return check


def inspect(*arguments: object) -> Any:
    """The JSON that `ottla inspect` prints."""
    result = CliRunner().invoke(main, ["inspect", *map(str, arguments), "--format", "json"])
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code in (0, 1), result.output
    assert result.stdout, result.stderr
    return json.loads(result.stdout)


def findings_while(broker: SwappableBroker, work: Callable[[SwappableBroker], None]) -> list[dict[str, str]]:
    """The findings of all checks that run while `work` runs."""
    told = []
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work, broker)
        while not done.done():
            told += inspect("verify", broker.data)["findings"]
        done.result()
    return told


def open_transaction(broker: SwappableBroker) -> Producer:
    writer = producer(broker, transactional_id="open")
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce("transactions", b"not decided", b"key-0")
    assert writer.flush(30) == 0
    return writer


def assert_log_shows_everything(data: Path) -> None:
    """Nothing is unreadable, and as many records as Kafka's own tool counts are there."""
    contents = [inspect("log", "--records", path)[0] for path in sorted(data.glob("*-[0-9]"))]
    segments = [segment for content in contents for segment in content["segments"]]
    assert not any(segment["damage"] for segment in segments)
    assert all(isinstance(segment[key], list) for segment in segments for key in ("index", "time_index"))
    assert all(isinstance(rows, list) for content in contents for rows in content["producer_snapshots"].values())
    batches = [batch for segment in segments for batch in segment["batches"]]
    assert all(len(batch["records"]) == batch["count"] for batch in batches)
    flags = {flag for batch in batches for flag in batch["flags"]}
    assert flags == {"transactional", "control", "abort", "commit", "delete-horizon", "log-append-time"}
    assert {batch["codec"] for batch in batches} == set(CODECS)
    assert any(segment["aborted_transactions"] for segment in segments)
    open_since = [
        row["transaction_first_offset"]
        for content in contents
        for rows in content["producer_snapshots"].values()
        for row in rows
    ]
    assert max(open_since) > 0


@pytest.mark.timeout(240)
def test_verify_finds_nothing_in_what_kafka_wrote(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    with SwappableBroker(tmp_path / "cluster", kafka_tools, OVERRIDES) as broker:
        data = broker.data
        broker.start("Kafka")
        assert findings_while(broker, make) == []
        eventually(is_compacted(broker, "compacted", "transactions"), "Kafka compacts")
        with pytest.raises(LogDirectoryError, match="in use by a running broker"):
            LogDirectory(FileSystem(), str(data)).acquire()
        broker.stop(signal.SIGKILL)
        assert inspect("verify", data)["findings"] == []
        last = max((data / "plain-0").glob("*.log"))
        os.truncate(last, last.stat().st_size - 7)  # as a lost page would
        (data / HIGH_WATERMARKS).unlink()
        assert inspect("verify", data)["findings"] == []
        broker.start("Kafka", dict.fromkeys(TOPICS.keys() - {"deleted"}, 1))
        assert findings_while(broker, write) == []
        open_transaction(broker)
        broker.stop(signal.SIGTERM)
        told = inspect("verify", data)
        assert told["findings"] == []
        assert told["logs"] == len(TOPICS) - 1 + 4
        assert_log_shows_everything(data)
