"""Runs real clients until it is stopped, and mutates their requests on the way to the brokers.

    python -m tests.hostile.mutated_clients --client librdkafka --bootstrap 127.0.0.1:9092 --seed 1

Whatever a client makes of the answers is no matter; one that gives up is made again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = ("mutated-1", "mutated-2")
ROUND_S = 4.0


def librdkafka(bootstrap: str, rng: random.Random) -> None:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

    common = {"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 3000}
    settings = {"compression.type": rng.choice(CODECS), "enable.idempotence": rng.random() < 0.5, "linger.ms": 5}
    producer = Producer(common | settings | {"message.timeout.ms": 3000})
    for number in range(300):
        with contextlib.suppress(BufferError):
            producer.produce(rng.choice(TOPICS), rng.randbytes(rng.randrange(2000)), str(number))
        producer.poll(0.005)
    producer.flush(3)
    consumer = Consumer(
        common
        | {"group.id": f"mutated-{rng.randrange(5)}", "auto.offset.reset": "earliest", "session.timeout.ms": 6000}
    )
    consumer.subscribe(list(TOPICS))
    for _ in range(20):
        consumer.poll(0.1)
    with contextlib.suppress(Exception):
        consumer.commit(asynchronous=False)
    consumer.close()
    admin = AdminClient(common)
    name = f"mutated-{rng.randrange(3, 9)}"
    futures = [
        *admin.create_topics([NewTopic(name, rng.randrange(1, 5), 3)], request_timeout=3).values(),
        *admin.describe_configs([ConfigResource(ResourceType.TOPIC, TOPICS[0])], request_timeout=3).values(),
        *admin.delete_topics([name], request_timeout=3).values(),
        admin.list_consumer_groups(request_timeout=3),
    ]
    for future in futures:
        with contextlib.suppress(Exception):
            future.result(3)


def kafka_python(bootstrap: str, rng: random.Random) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        request_timeout_ms=3000,
        max_block_ms=3000,
        compression_type=rng.choice((None, "gzip")),
    )
    for _ in range(100):
        producer.send(rng.choice(TOPICS), rng.randbytes(rng.randrange(500)))
    producer.flush(3)
    producer.close(1)
    consumer = KafkaConsumer(
        *TOPICS, bootstrap_servers=bootstrap, group_id=f"mutated-{rng.randrange(5)}", auto_offset_reset="earliest"
    )
    for _ in range(10):
        consumer.poll(200)
    consumer.close()


def aiokafka(bootstrap: str, rng: random.Random) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def main() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, request_timeout_ms=3000, enable_idempotence=rng.random() < 0.5
        )
        await producer.start()
        with contextlib.suppress(Exception):
            for _ in range(100):
                await producer.send(rng.choice(TOPICS), rng.randbytes(rng.randrange(500)))
            await asyncio.wait_for(producer.flush(), 3)
        await asyncio.wait_for(producer.stop(), 3)
        consumer = AIOKafkaConsumer(*TOPICS, bootstrap_servers=bootstrap, group_id=f"mutated-{rng.randrange(5)}")
        await consumer.start()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(consumer.getmany(timeout_ms=1000), 3)
        await asyncio.wait_for(consumer.stop(), 3)

    asyncio.run(asyncio.wait_for(main(), 4 * ROUND_S))


CLIENTS: dict[str, Callable[[str, random.Random], None]] = {
    play.__name__: play for play in (librdkafka, kafka_python, aiokafka)
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", choices=sorted(CLIENTS), required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rng = random.Random(options.seed)
    while True:
        with contextlib.suppress(Exception):
            CLIENTS[options.client](options.bootstrap, rng)


if __name__ == "__main__":
    main()
