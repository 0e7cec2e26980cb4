"""Record batches, their records and their compression; what a leader, a loading coordinator and the cleaner do with them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

from broker.settings.config import TopicConfig
from broker.storage.compaction import batch_cleaning
from broker.storage.compaction.batch_cleaning import BatchCleaner, LastOfProducer, Transactions, raw_records
from broker.storage.compaction.compaction import OffsetMap
from broker.storage.producers import produced_batches as rules
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.compression import COMPRESSIONS, compress, decompress
from protocol.kafka.keyed_records import keyed_records
from protocol.kafka.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    build_batch,
    crc_is_valid,
    decode_records,
    in_pieces,
    iter_batches,
    parse_header,
    validate_produced,
)
from protocol.kafka.record_checks import check_records
from tests.fuzz.decoder import Decoder, must
from tests.fuzz.sealing import packed, parts_of, sealed_batch

UNPACKED_MAX = 1 << 18
NOW_MS = 1_700_000_000_000
CODES = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE})

Rows = Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int]]


def decoders() -> list[Decoder]:
    unpack_memory = 16 << 20
    return [
        Decoder("batches", _batches, _batches_seeds, (KafkaError,), cpu_ms=20),
        Decoder("records", _records, _records_seeds, (KafkaError,)),
        Decoder("produced-batch", _produced, _produced_seeds, (KafkaError,), cpu_ms=30, memory=8 << 20),
        Decoder("cleaned-batches", _cleaned, _cleaned_seeds, (KafkaError,), cpu_ms=30, memory=8 << 20),
        *(
            Decoder(
                f"unpack-{name}",
                partial(_unpack, number),
                partial(_unpack_seeds, number),
                (KafkaError,),
                cpu_ms=40,
                memory=unpack_memory,
                bytes_max=2048,
            )
            for number, name in enumerate(COMPRESSIONS)
            if number
        ),
    ]


ROWS: list[Rows] = [
    [(b"k", b"v", (), 1000)],
    [(None, None, (), -1)],
    [(b"k", None, (("h", b"1"), ("", None)), 5), (None, b"v" * 130, (), 1 << 40)],
    [(b"%d" % n, b"v", (), NOW_MS + n) for n in range(12)],
    [(b"k", b"v" * 300, (("n" * 70, b"x" * 70),), NOW_MS)],
]


# -- any bytes as batches -------------------------------------------------------------------------------------------------


def _batches(data: bytes) -> object:
    """The first bit of the first byte: as they are, or each part sealed."""
    records = data[1:]
    if data[:1] and data[0] & 1:
        records = b"".join(map(sealed_batch, parts_of(records)))
    view = memoryview(records)
    assert b"".join(in_pieces(view, 100)) == records
    found = []
    for position, header in iter_batches(view):
        assert parse_header(view, position) == header
        assert header.size_in_bytes >= HEADER_SIZE
        assert position + header.size_in_bytes <= len(view)
        is_valid = crc_is_valid(view, position, header)
        assert is_valid or not data[0] & 1
        try:
            found += decode_records(view, position)
        except KafkaError as error:
            must(error.code in CODES, error)
    return found


def _batches_seeds() -> Iterator[bytes]:
    whole = [build_batch(rows, compression=n % 5) for n, rows in enumerate(ROWS)]
    yield b"\0" + b"".join(whole)
    yield b"\1" + packed(whole)
    for batch in whole:
        yield b"\0" + batch
        yield b"\1" + packed([batch])


# -- records --------------------------------------------------------------------------------------------------------------


def _records(data: bytes) -> object:
    """A byte for the count, then the payload. All readers of records find the same."""
    count = data[0] if data else 0
    payload = data[1:]
    try:
        check_records(payload, 0, count)
        is_right = True
    except KafkaError as error:
        must(error.code is ErrorCode.INVALID_RECORD, error)
        is_right = False
    batch = bytearray(sealed_batch(bytes(HEADER_SIZE) + payload))
    struct.pack_into(">i", batch, 57, count)
    raw = _of(lambda: raw_records(payload, count))
    keyed = _of(lambda: list(keyed_records(payload, count)))
    decoded = _of(lambda: decode_records(batch))
    if is_right:
        assert decoded is not None
        assert keyed is not None
        assert raw is not None
        assert [record.offset for record in decoded] == list(range(count))
        assert [(record.key, record.value) for record in decoded] == keyed
        assert [(record[5], record[6]) for record in raw] == [(r.key, r.value is not None) for r in decoded]
    if not is_right:
        raise KafkaError(ErrorCode.INVALID_RECORD)
    return decoded


def _of(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except KafkaError as error:
        must(error.code in CODES, error)
        return None


def _records_seeds() -> Iterator[bytes]:
    for rows in ROWS:
        yield bytes((len(rows),)) + build_batch(rows)[HEADER_SIZE:]
    yield b"\1" + b"\x12\x00\x00\x00\x02kk\x01\x00\x00\x00"


# -- what a producer sends ------------------------------------------------------------------------------------------------

CONFIGS = (
    TopicConfig(),
    TopicConfig(compression_type="zstd"),
    TopicConfig(compression_type="uncompressed"),
    TopicConfig(cleanup_policy="compact"),
    TopicConfig(message_timestamp_type="LogAppendTime"),
    TopicConfig(message_timestamp_before_max_ms=1000),
    TopicConfig(compression_type="gzip", compression_gzip_level=1, cleanup_policy="compact,delete"),
    TopicConfig(compression_type="lz4", max_message_bytes=200),
)


def _produced(data: bytes) -> object:
    """A byte for the topic's settings, and whether the batch is sealed; then the batch."""
    config = CONFIGS[(data[0] if data else 0) % len(CONFIGS)]
    batch = data[1:] if data[:1] and data[0] & 0x80 else sealed_batch(data[1:])
    ((_, header),) = validate_produced(batch, max_message_bytes=config.max_message_bytes)
    accepted, changed = _accepted(batch, header, config)
    assert parse_header(accepted) == changed
    assert crc_is_valid(accepted, 0, changed)
    assert changed.record_count == header.record_count
    validate_produced(accepted, max_message_bytes=1 << 30)
    before, after = decode_records(batch), decode_records(accepted)
    assert [record[2:] for record in before] == [record[2:] for record in after]
    return accepted


def _accepted(batch: bytes, header: BatchHeader, config: TopicConfig) -> tuple[Any, BatchHeader]:
    """Work in steps gives the same result as work at once."""
    rest = (header, config, lambda: NOW_MS)
    in_steps = _outcome(lambda: rules.at_once(rules.accepting(batch, *rest, rules.Allowance())))
    try:
        at_once = _outcome(lambda: rules.accept(batch, *rest, rules.Allowance()))
    except rules.TakesLong:
        at_once = in_steps
    if isinstance(at_once, ErrorCode) or isinstance(in_steps, ErrorCode):
        must(at_once is in_steps, f"{at_once!r} is not {in_steps!r}")
        raise KafkaError(at_once)
    assert bytes(at_once[0]) == bytes(in_steps[0])
    accepted: tuple[Any, BatchHeader] = at_once
    return accepted


def _outcome(work: Callable[[], Any]) -> Any:
    """Or the error's code: an error that is kept would keep what its frames had."""
    try:
        return work()
    except KafkaError as error:
        return error.code


def _produced_seeds() -> Iterator[bytes]:
    for number in range(len(CONFIGS)):
        for compression in range(5):
            rows = ROWS[(number + compression) % len(ROWS)]
            yield bytes((number,)) + build_batch(rows, compression=compression)
            yield bytes((number,)) + build_batch(
                rows, compression=compression, producer_id=5, producer_epoch=0, base_sequence=3
            )
    yield b"\x80" + build_batch(ROWS[0])


# -- compaction -----------------------------------------------------------------------------------------------------------


def _cleaned(data: bytes) -> object:
    """A log of sealed batches, compacted: what stays are batches again, with some of the records."""
    log = []
    offset = 0
    for part in parts_of(data)[:8]:
        batch = bytearray(sealed_batch(part))
        struct.pack_into(">q", batch, 0, offset)
        header = parse_header(batch)
        if header.last_offset_delta < 0 or header.record_count < 0:
            continue
        log.append((bytes(batch), header))
        offset = header.next_offset
    transactions = Transactions()
    offset_map = OffsetMap(100_000)
    for batch, header in log:
        batch_cleaning.checked(batch, 0, header)
        transactions.note(batch, 0, header)
    for batch, header in log:
        if not header.is_control and not transactions.is_aborted(header):
            batch_cleaning.note_keys(offset_map, batch, 0, header, 0)
    last = {header.producer_id: LastOfProducer(header.last_offset, header.producer_epoch) for _, header in log[-1:]}
    cleaner = BatchCleaner(offset_map, transactions, last.get, now_ms=NOW_MS, delete_retention_ms=1000)
    kept = []
    for batch, header in log:
        stays = cleaner.cleaned(batch, 0, header)
        if stays is None:
            continue
        changed = parse_header(stays)
        assert crc_is_valid(stays, 0, changed)
        assert changed.size_in_bytes == len(stays)
        assert (changed.base_offset, changed.last_offset) == (header.base_offset, header.last_offset)
        assert 0 <= changed.record_count <= header.record_count
        payload = decompress(bytes(stays[HEADER_SIZE:]), changed.compression, 1 << 28, ErrorCode.CORRUPT_MESSAGE)
        raw_records(payload, changed.record_count)
        kept.append(changed)
    return kept


def _cleaned_seeds() -> Iterator[bytes]:
    marker = struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 0)
    for compression in range(5):
        yield packed([build_batch(rows, compression=compression) for rows in ROWS])
    yield packed(
        [
            build_batch([(b"k", b"1", (), 1000)], producer_id=7, producer_epoch=0, base_sequence=0, attributes=0x10),
            build_batch([(*marker, (), 1000)], producer_id=7, producer_epoch=0, attributes=0x30),
            build_batch([(b"k", None, (), 1000), (b"l", None, (), 1001)], attributes=0x40),
            build_batch([(b"k", None, (), 1000), (b"k", b"v", (), 1001)], attributes=0x08),
        ]
    )


# -- compression ----------------------------------------------------------------------------------------------------------


def _unpack(compression: int, data: bytes) -> object:
    """Unpacks at most `UNPACKED_MAX` bytes, in little more memory. The result can be packed and unpacked again."""
    try:
        found = decompress(data, compression, UNPACKED_MAX, ErrorCode.MESSAGE_TOO_LARGE)
    except KafkaError as error:
        must(error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE), error)
        raise
    assert len(found) <= UNPACKED_MAX
    if len(found) < 4096:
        assert decompress(compress(found, compression), compression, UNPACKED_MAX, ErrorCode.MESSAGE_TOO_LARGE) == found
    return len(found)


def _unpack_seeds(compression: int) -> Iterator[bytes]:
    random = Random(compression)
    for payload in (b"", b"a", b"ab" * 50, random.randbytes(200), bytes(20_000), bytes(UNPACKED_MAX + 1)):
        yield compress(payload, compression)
    if compression == 2:
        blocks = [compress(b"x" * 40, 2), compress(b"yz" * 40, 2)]
        yield b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)
