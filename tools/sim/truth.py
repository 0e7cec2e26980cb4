"""What is really there: the logs on the simulated disks and the tree of ZooKeeper. Brokers are not asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from broker.groups.offsets_topic.records import OffsetKey, decode_key, decode_offset_value
from protocol.errors import KafkaError
from protocol.kafka.control_records import marker_in
from protocol.kafka.record_batch import BatchHeader, crc_is_valid, decode_records, iter_batches
from protocol.types import NO_LEADER, Assignment, LeaderAndIsr, TopicPartition
from protocol.zk.znodes import ControllerZNode, PartitionStateZNode, TopicZNode
from tools.judge.judgement import PartitionLog
from tools.sim.policies import id_of
from tools.sim.world.disk import Directory, Inode, MemoryDisk, Node
from tools.sim.world.zookeeper_tree import ZooKeeperTree

LOG_DIRECTORY = re.compile(r"/data/(?P<topic>[^/]+)-(?P<partition>\d+)")
LOG_NAME = re.compile(r"/data/(?P<topic>[^/]+)-(?P<partition>\d+)/(?P<base>\d{20})\.log")
TOPIC_PATH = re.compile(r"/brokers/topics/([^/]+)")
STATE_PATH = re.compile(r"/brokers/topics/(.+)/partitions/(\d+)/state")


class TornLog(Exception):
    """A replica has bytes that are no batch."""


class StoredBatch(NamedTuple):
    """A batch of a replica. `ids`: of its records, by offset; none for a control batch.

    `producer`: the id of a transactional producer, else -1. `marker`: whether a control batch commits; None for others.
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    ids: Mapping[int, str]
    producer: int
    marker: bool | None


class Replica(NamedTuple):
    """`batches`: in the order of their segments. `end`: the next offset."""

    batches: Sequence[StoredBatch] = ()
    end: int = 0

    @property
    def start(self) -> int:
        """The first offset that is there; the end if nothing is."""
        return self.batches[0].base_offset if self.batches else self.end


def replicas_on(disk: MemoryDisk) -> dict[TopicPartition, Replica]:
    """Raises TornLog."""
    segments: dict[TopicPartition, dict[int, Inode]] = {}
    for path, node in disk.names.items():
        match = LOG_NAME.fullmatch(path)
        if match and isinstance(node, Inode):
            tp = TopicPartition(match["topic"], int(match["partition"]))
            segments.setdefault(tp, {})[int(match["base"])] = node
    return {tp: _replica(files) for tp, files in sorted(segments.items())}


def _replica(files: Mapping[int, Inode]) -> Replica:
    """Of its files, by their first offsets. All batches may have been removed: then the name of the last segment says the end."""
    batches = [(base, batches_in(node.content)) for base, node in sorted(files.items())]
    base, last = batches[-1]
    return Replica([batch for _, of_file in batches for batch in of_file], last[-1].last_offset + 1 if last else base)


def segments_on(disk: MemoryDisk, tp: TopicPartition) -> list[bytearray]:
    """The segments of one replica, in their order."""
    node: Node | None = disk.root
    for name in ("data", str(tp)):
        node = node.entries.get(name) if isinstance(node, Directory) else None
    files = node.entries if isinstance(node, Directory) else {}
    return [file.content for name, file in sorted(files.items()) if isinstance(file, Inode) and name.endswith(".log")]


def batches_in(segment: bytearray) -> Sequence[StoredBatch]:
    """Raises TornLog. A content is read once: it is the same on several disks, and looked at often."""
    key = (len(segment), crc32(segment))
    if key not in _read:
        _read[key] = list(_batches(bytes(segment)))
    return _read[key]


_read: dict[tuple[int, int], list[StoredBatch]] = {}


def headers_in(data: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch. Raises TornLog at bytes that are no batch."""
    try:
        yield from iter_batches(data)
    except KafkaError as error:
        raise TornLog(f"bytes that are no batch: {error}") from None


def _batches(data: bytes) -> Iterator[StoredBatch]:
    """Raises TornLog at a batch whose checksum is wrong, and at bytes that are no batch."""
    for position, header in headers_in(data):
        if not crc_is_valid(data, position, header):
            raise TornLog(f"the checksum of the batch at offset {header.base_offset} is wrong")
        ids = {}
        if not header.is_control:
            ids = {header.base_offset + delta: record for delta, record in _ids(data, position, header)}
        marker = marker_in(data, position) if header.is_control else None
        yield StoredBatch(
            header.base_offset,
            header.last_offset,
            header.partition_leader_epoch,
            header.crc,
            ids,
            header.producer_id if header.is_transactional else -1,
            None if marker is None else marker.is_commit,
        )


def _ids(data: bytes, position: int, header: BatchHeader) -> list[tuple[int, str]]:
    """(offset in the batch, id) of each record. A batch is unpacked once: the same one is on several disks, and looked at often."""
    key = (header.crc, header.size_in_bytes)
    if key not in _known:
        _known[key] = [
            (record.offset - header.base_offset, id_of(bytes(record.value or b"")))
            for record in decode_records(data, position)
        ]
    return _known[key]


_known: dict[tuple[int, int], list[tuple[int, str]]] = {}


def log_of(batches: Sequence[StoredBatch], start: int, end: int, *, is_whole: bool) -> PartitionLog:
    """A replica as the judge takes it, from the log start offset on."""
    ids = {offset: record for batch in batches for offset, record in batch.ids.items() if offset >= start}
    return PartitionLog(start, end, ids, is_whole=is_whole)


class Visible(NamedTuple):
    """What readers of committed records may see of a log: (offset, id), and the producers of transactions that have not ended."""

    records: list[tuple[int, str]]
    open: list[int]


def visible_in(batches: Sequence[StoredBatch]) -> Visible:
    """Of a whole log."""
    records: list[tuple[int, str]] = []
    open_transactions: dict[int, list[tuple[int, str]]] = {}
    for batch in batches:
        if batch.marker is not None:
            held = open_transactions.pop(batch.producer, [])
            records += held if batch.marker else []
        elif batch.producer >= 0:
            open_transactions.setdefault(batch.producer, []).extend(batch.ids.items())
        else:
            records += batch.ids.items()
    return Visible(sorted(records), list(open_transactions))


def committed_in(segments: Sequence[bytearray]) -> dict[tuple[str, TopicPartition], int]:
    """(group, partition) -> the committed offset, by the log of groups. What an open or aborted transaction commits does not count."""
    found: dict[tuple[str, TopicPartition], int] = {}
    held: dict[int, dict[tuple[str, TopicPartition], int]] = {}
    for data in map(bytes, segments):
        for position, header in headers_in(data):
            marker = marker_in(data, position) if header.is_control else None
            if marker is not None:
                ended = held.pop(header.producer_id, {})
                found |= ended if marker.is_commit else {}
            else:
                offsets = held.setdefault(header.producer_id, {}) if header.is_transactional else found
                for record in decode_records(data, position):
                    key = decode_key(record.key)
                    if isinstance(key, OffsetKey) and record.value is not None:
                        place = key.group_id, TopicPartition(key.topic, key.partition)
                        offsets[place] = decode_offset_value(record.value).offset
    return found


def assignments_in(tree: ZooKeeperTree) -> dict[TopicPartition, Assignment]:
    """The replicas of each partition in ZooKeeper."""
    found = {}
    for path, node in tree.nodes.items():
        match = TOPIC_PATH.fullmatch(path)
        if match:
            for number, assignment in TopicZNode.decode(node.data)[1].items():
                found[TopicPartition(match[1], number)] = assignment
    return found


def states_in(tree: ZooKeeperTree) -> dict[TopicPartition, LeaderAndIsr]:
    """The state of each partition in ZooKeeper."""
    found = {}
    for path, node in tree.nodes.items():
        match = STATE_PATH.fullmatch(path)
        if match:
            found[TopicPartition(match[1], int(match[2]))] = PartitionStateZNode.decode(node.data, node.version)
    return found


def controller_in(tree: ZooKeeperTree) -> int:
    """The broker in `/controller`; NO_LEADER if there is none."""
    node = tree.nodes.get(ControllerZNode.PATH)
    return NO_LEADER if node is None else ControllerZNode.decode(node.data)
