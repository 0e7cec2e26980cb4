"""A well-behaved client in a process of its own, which tells how long it had to wait while others attack.

    python -m tests.hostile.canary --topic canary --brokers 1=127.0.0.1:9092,2=127.0.0.1:9192

For each broker: one connection that produces a record at a time (acks=all) to the partition that this broker leads, one that
reads them back, one that asks for metadata. A wait is the time from the first try of a request to its good answer, over all
errors and reconnections. It speaks JSON lines: each line read ("mark") is answered by what was seen since the last one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import struct
import sys
import time
from typing import Any

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch, decode_records, iter_batches

PAUSE_S = 0.01
REQUEST_TIMEOUT_S = 60.0
RECONNECT_PAUSE_S = 0.005
RECORDS_IN_A_REPORT = 5


class Waits:
    """What was seen since the last mark."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        self.answers = 0
        self.errors: dict[str, int] = {}
        self.begun: dict[str, float] = {}
        """Requests under way: what for -> since when."""

    def note(self, what: str, seconds: float) -> None:
        self.answers += 1
        self.longest[what] = max(self.longest.get(what, 0.0), seconds)

    def report(self) -> dict[str, Any]:
        for what, since in self.begun.items():
            self.longest[what] = max(self.longest.get(what, 0.0), time.monotonic() - since)
        found = {"longest_s": self.longest, "answers": self.answers, "errors": self.errors}
        self.longest, self.answers, self.errors = {}, 0, {}
        return found


class Connection:
    """To one broker; made again after any failure."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._correlation_id = 0

    async def call(self, api_key: ApiKey, version: int, body: dict[str, Any]) -> Any:
        """The decoded answer. Raises OSError, TimeoutError or asyncio.IncompleteReadError."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                if self._streams is None:
                    self._streams = await asyncio.open_connection(*self._address, limit=1 << 22)
                reader, writer = self._streams
                self._correlation_id += 1
                payload = messages.encode_request(api_key, version, self._correlation_id, "canary", body)
                writer.write(struct.pack(">i", len(payload)) + payload)
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                return messages.decode_response(api_key, version, await reader.readexactly(size))[1]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class LiveCanary:
    """`partitions`: by broker, which one it leads. `sent` and `found` count the numbers that the records carry."""

    def __init__(self, topic: str, brokers: dict[int, tuple[str, int]]) -> None:
        self.topic = topic
        self.brokers = brokers
        self.waits = Waits()
        self.leaders: dict[int, int] = {}
        self.acknowledged: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.faults: list[str] = []

    async def run(self) -> None:
        await self._find_leaders()
        tasks = [
            asyncio.create_task(play(partition)) for partition in self.leaders for play in (self._produce, self._fetch)
        ]
        tasks += [asyncio.create_task(self._ask(broker)) for broker in self.brokers]
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        print(json.dumps({"ready": True}), flush=True)
        while await reader.readline():
            row = self.waits.report()
            row |= {"acknowledged": sum(self.acknowledged.values()), "read": sum(self.read.values())}
            row |= {"faults": self.faults[:RECORDS_IN_A_REPORT], "tasks_ended": sum(task.done() for task in tasks)}
            print(json.dumps(row), flush=True)
        for task in tasks:
            task.cancel()

    async def _find_leaders(self) -> None:
        connections = [Connection(*address) for address in self.brokers.values()]
        while True:
            for connection in connections:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    body = {"topics": [{"name": self.topic}], "allow_auto_topic_creation": False}
                    answer = await connection.call(ApiKey.METADATA, 4, body)
                    partitions = answer.topics[0].partitions
                    if partitions and all(int(p.leader_id) in self.brokers for p in partitions):
                        self.leaders.update({int(p.partition_index): int(p.leader_id) for p in partitions})
                        for each in connections:
                            each.close()
                        return
                    await asyncio.sleep(PAUSE_S)

    async def _until_good(self, what: str, connection: Connection, *request: Any, check: Any) -> Any:
        """Asks again until `check` finds no error (a code) in the answer."""
        begun = self.waits.begun[what] = time.monotonic()
        while True:
            try:
                answer = await connection.call(*request)
                code = check(answer)
            except (OSError, asyncio.IncompleteReadError) as error:
                code = type(error).__name__
            if not code:
                break
            self.waits.errors[f"{what}: {code}"] = self.waits.errors.get(f"{what}: {code}", 0) + 1
            await asyncio.sleep(RECONNECT_PAUSE_S)
        del self.waits.begun[what]
        self.waits.note(what, time.monotonic() - begun)
        return answer

    async def _produce(self, partition: int) -> None:
        """Numbers from 0, one at a time. A number may be there twice when its first answer was lost."""
        connection = Connection(*self.brokers[self.leaders[partition]])
        number = 0
        while True:
            batch = build_batch([(None, struct.pack(">q", number), [], round(time.time() * 1000))])
            data = [{"name": self.topic, "partition_data": [{"index": partition, "records": batch}]}]
            body = {"transactional_id": None, "acks": -1, "timeout": 30000, "topic_data": data}
            await self._until_good(
                f"produce {partition}",
                connection,
                ApiKey.PRODUCE,
                7,
                body,
                check=lambda answer: int(answer.responses[0].partition_responses[0].error_code),
            )
            number += 1
            self.acknowledged[partition] = number
            await asyncio.sleep(PAUSE_S)

    async def _fetch(self, partition: int) -> None:
        """Every number comes, in order."""
        connection = Connection(*self.brokers[self.leaders[partition]])
        offset, number = 0, 0
        while True:
            asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            asked |= {"current_leader_epoch": -1, "log_start_offset": -1}
            body = {"replica_id": -1, "max_wait": 100, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
            body |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
            body |= {"topics": [{"topic": self.topic, "partitions": [asked]}]}
            answer = await self._until_good(
                f"fetch {partition}",
                connection,
                ApiKey.FETCH,
                11,
                body,
                check=lambda answer: int(answer.error_code or answer.responses[0].partitions[0].error_code),
            )
            records = answer.responses[0].partitions[0].records or b""
            for position, header in iter_batches(records):
                for record in decode_records(records, position):
                    (found,) = struct.unpack(">q", record.value or b"")
                    if found > number:
                        self.faults.append(f"partition {partition}: {found} at offset {offset}, {number} was to come")
                    number = max(number, found + 1)
                offset = header.base_offset + header.last_offset_delta + 1
            self.read[partition] = number

    async def _ask(self, broker: int) -> None:
        connection = Connection(*self.brokers[broker])
        body = {"topics": [{"name": self.topic}], "allow_auto_topic_creation": False}
        while True:
            await self._until_good(
                f"metadata of {broker}",
                connection,
                ApiKey.METADATA,
                4,
                body,
                check=lambda answer: int(answer.topics[0].error_code),
            )
            await asyncio.sleep(PAUSE_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--topic", required=True)
    parser.add_argument("--brokers", required=True)
    options = parser.parse_args()
    brokers = {}
    for entry in options.brokers.split(","):
        broker, _, address = entry.partition("=")
        host, _, port = address.rpartition(":")
        brokers[int(broker)] = (host, int(port))
    asyncio.run(LiveCanary(options.topic, brokers).run())


if __name__ == "__main__":
    main()
