"""What is really there: the logs on the simulated disks and the tree of ZooKeeper. Brokers are not asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from broker.groups.offsets_topic.records import OffsetKey, decode_key, decode_offset_value
from broker.storage.directories.future_logs import REPLACES_CURRENT
from broker.storage.directories.log_directory import FUTURE_SUFFIX
from broker.transactions import records as transaction_records
from broker.transactions.transaction import TransactionMetadata
from protocol.errors import KafkaError
from protocol.kafka.control_records import marker_in
from protocol.kafka.record_batch import BatchHeader, crc_is_valid, decode_records, iter_batches
from protocol.types import NO_LEADER, Assignment, Buffer, LeaderAndIsr, TopicPartition
from protocol.zk.znodes import ControllerZNode, PartitionStateZNode, TopicZNode
from tools.judge.logs import PartitionLog
from tools.sim.policies import id_of, text_of
from tools.sim.world.disk import Directory, Inode, MemoryDisk
from tools.sim.world.nodes import LOG_DIRS
from tools.sim.world.zookeeper_tree import ZooKeeperTree

LOG_DIRECTORY = re.compile(rf"({'|'.join(LOG_DIRS)})/(?P<topic>[^/]+)-(?P<partition>\d+)")
LOG_NAME = re.compile(rf"(?P<log_dir>{'|'.join(LOG_DIRS)})/(?P<topic>[^/]+)-(?P<partition>\d+)/\d{{20}}\.log")
COPY_NAME = re.compile(rf"(?P<topic>[^/]+)-(?P<partition>\d+)(?P<future>\.[0-9a-f]{{32}}{FUTURE_SUFFIX})?")
"""Of a replica's directory, or of one that is to take its place."""
TOPIC_PATH = re.compile(r"/brokers/topics/([^/]+)")
STATE_PATH = re.compile(r"/brokers/topics/(.+)/partitions/(\d+)/state")


class TornLog(Exception):
    """A replica has bytes that are no batch."""


class StoredBatch(NamedTuple):
    """A batch of a replica. `ids`: of its records, by offset; none for a control batch.

    `producer`: the id of a transactional producer, else -1. `marker`: whether a control batch commits; None for others. A marker of which
    compaction has left only the header, as nothing else is left of its transaction, is neither.
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


class Copy(NamedTuple):
    """A replica's directory, or a copy of it in another log directory. `is_future`: its name says that it does not count yet."""

    path: str
    directory: Directory
    is_future: bool

    @property
    def is_complete(self) -> bool:
        """Its broker has decided that it takes the place of the other one."""
        return REPLACES_CURRENT in self.directory.entries

    @property
    def segments(self) -> dict[int, bytearray]:
        """By their first offsets, in their order."""
        files = sorted(self.directory.entries.items())
        return {
            int(name[:-4]): file.content for name, file in files if name.endswith(".log") and isinstance(file, Inode)
        }


def copies_on(disk: MemoryDisk) -> dict[TopicPartition, list[Copy]]:
    """All replicas of a broker, with their copies."""
    found: dict[TopicPartition, list[Copy]] = {}
    for path, log_dir in _log_dirs(disk):
        for name, node in log_dir.entries.items():
            match = COPY_NAME.fullmatch(name)
            if match and isinstance(node, Directory):
                tp = TopicPartition(match["topic"], int(match["partition"]))
                found.setdefault(tp, []).append(Copy(f"{path}/{name}", node, match["future"] is not None))
    return found


def copies_of(disk: MemoryDisk, tp: TopicPartition) -> list[Copy]:
    """One replica, with its copies."""
    log_dirs, own, begin = _log_dirs(disk), str(tp), f"{tp}."
    found = [(path, own, log_dir.entries.get(own)) for path, log_dir in log_dirs]
    if len(log_dirs) > 1:
        found += [
            (path, name, node)
            for path, log_dir in log_dirs
            for name, node in log_dir.entries.items()
            if name.startswith(begin) and name.endswith(FUTURE_SUFFIX)
        ]
    return [Copy(f"{path}/{name}", node, name != own) for path, name, node in found if isinstance(node, Directory)]


def _log_dirs(disk: MemoryDisk) -> list[tuple[str, Directory]]:
    found = [(path, disk.root.entries.get(path[1:])) for path in LOG_DIRS]
    return [(path, node) for path, node in found if isinstance(node, Directory)]


def that_counts(copies: Sequence[Copy]) -> Copy | None:
    """Which of the copies is the replica, also after a crash within a move.

    A copy that is complete takes the place of the log with its name, or when the log is gone.
    """
    named = [copy for copy in copies if not copy.is_future]
    complete = [copy for copy in named or copies if copy.is_complete]
    return complete[0] if len(complete) == 1 else next(iter(named), None)


def replicas_on(disk: MemoryDisk) -> dict[TopicPartition, Replica]:
    """Raises TornLog."""
    counting = {tp: that_counts(copies) for tp, copies in sorted(copies_on(disk).items())}
    return {tp: _replica(copy.segments) for tp, copy in counting.items() if copy is not None and copy.segments}


def unfinished_on(disk: MemoryDisk) -> list[str]:
    """The paths of copies that are not the replica: of moves that have not ended."""
    found = sorted(copies_on(disk).items())
    return [copy.path for _, copies in found for copy in copies if copy is not that_counts(copies)]


def _replica(segments: Mapping[int, bytearray]) -> Replica:
    """Of its segments. All batches may have been removed: then the name of the last segment says the end."""
    batches = [(base, batches_in(content)) for base, content in segments.items()]
    base, last = batches[-1]
    return Replica([batch for _, of_file in batches for batch in of_file], last[-1].last_offset + 1 if last else base)


def segments_on(disk: MemoryDisk, tp: TopicPartition) -> list[bytearray]:
    """The segments of one replica, in their order."""
    copy = that_counts(copies_of(disk, tp))
    return [] if copy is None else list(copy.segments.values())


def batches_in(segment: bytearray) -> Sequence[StoredBatch]:
    """Raises TornLog. A content is read once: it is the same on several disks, and looked at often."""
    key = (len(segment), crc32(segment))
    if key not in _read:
        _read[key] = list(_batches(bytes(segment)))
    return _read[key]


_read: dict[tuple[int, int], list[StoredBatch]] = {}


def whole_part(data: bytes) -> bytes:
    """What comes before the first batch that is torn: a write may have failed half-way, or a power loss has left a part of it."""
    end = 0
    try:
        for position, header in headers_in(data):
            if not crc_is_valid(data, position, header):
                break
            end = position + header.size_in_bytes
    except TornLog:
        pass
    return data[:end]


def headers_in(data: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch. Raises TornLog at bytes that are no batch."""
    try:
        yield from iter_batches(data)
    except KafkaError as error:
        raise TornLog(f"bytes that are no batch: {error}") from None


def is_left_out(segments: Sequence[Buffer], batch: bytes) -> bool:
    """Whether a log has a later batch of the producer of `batch`, in the same epoch, and not `batch` itself."""
    (_, own), *_ = headers_in(batch)
    sequences = [
        header.base_sequence
        for segment in segments
        for _, header in headers_in(bytes(segment))
        if (header.producer_id, header.producer_epoch) == (own.producer_id, own.producer_epoch)
    ]
    return own.base_sequence not in sequences and any(sequence > own.base_sequence for sequence in sequences)


def _batches(data: bytes) -> Iterator[StoredBatch]:
    """Raises TornLog at a batch whose checksum is wrong, and at bytes that are no batch."""
    for position, header in headers_in(data):
        if not crc_is_valid(data, position, header):
            raise TornLog(f"the checksum of the batch at offset {header.base_offset} is wrong")
        ids = {}
        if not header.is_control:
            ids = {header.base_offset + delta: record for delta, record in _ids(data, position, header)}
        marker = marker_in(data, position) if header.is_control else None
        is_of_transaction = header.is_transactional and header.is_control == (marker is not None)
        yield StoredBatch(
            header.base_offset,
            header.last_offset,
            header.partition_leader_epoch,
            header.crc,
            ids,
            header.producer_id if is_of_transaction else -1,
            None if marker is None else marker.is_commit,
        )


def _ids(data: bytes, position: int, header: BatchHeader) -> list[tuple[int, str]]:
    """(offset in the batch, id) of each record. A batch is unpacked once: the same one is on several disks, and looked at often."""
    key = (header.crc, header.size_in_bytes)
    if key not in _known:
        _known[key] = [
            (record.offset - header.base_offset, id_of(text_of(record.value, record.headers)))
            for record in decode_records(data, position)
        ]
    return _known[key]


_known: dict[tuple[int, int], list[tuple[int, str]]] = {}


def log_of(batches: Sequence[StoredBatch], start: int, end: int) -> PartitionLog:
    """A replica as the judge takes it, from the log start offset on."""
    ids = {offset: record for batch in batches for offset, record in batch.ids.items() if offset >= start}
    return PartitionLog(start, end, ids)


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


def committed_in(segments: Sequence[Buffer]) -> dict[tuple[str, TopicPartition], int]:
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


def transactions_in(segments: Sequence[Buffer]) -> dict[str, TransactionMetadata]:
    """Transactional id -> what the log of transactions has last about it."""
    found = {}
    for data in map(bytes, segments):
        for position, _ in headers_in(data):
            for record in decode_records(data, position):
                if record.value is not None:
                    transactional_id = transaction_records.decode_key(record.key)
                    found[transactional_id] = transaction_records.decode_value(bytes(record.value))
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
