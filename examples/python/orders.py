"""Writes orders, reads them as a consumer group, and reports what it did for `ottla verify run`.

    ottla verify run --topic orders:6 --fault "kill leader of orders-0 at 5s" -- python examples/python/orders.py

`--acks 1` plants a bug: the leader alone acknowledges, so what it has not replicated yet is lost with it. `--group-protocol consumer` reads
in a group of the new kind (KIP-848).
"""

import argparse
import os
import signal
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

TOPIC, GROUP = "orders", "billing"
ORDERS_PER_S = 200

stopping = threading.Event()
lock = threading.Lock()
acknowledged: set[str] = set()
billed: set[str] = set()


def report(line: str) -> None:
    """One write for each line, so that lines of two threads do not mix; and no buffer."""
    with lock:
        sys.stdout.write(f"@ottla {line}\n")
        sys.stdout.flush()


def delivered(error, message) -> None:
    order = message.key().decode()
    if error is not None:
        report(f"failed topic={TOPIC} id={order}")
        return
    offset = -1 if message.offset() is None else message.offset()  # librdkafka may not know it
    report(f"acked topic={TOPIC} partition={message.partition()} offset={offset} id={order}")
    acknowledged.add(order)


def produce(settings: dict) -> None:
    producer = Producer(settings)
    number = 0
    while not stopping.is_set():
        order = f"order-{number}"
        report(f"produced topic={TOPIC} id={order}")  # before it is sent
        try:
            producer.produce(TOPIC, key=order, value=f"{number} pieces", on_delivery=delivered)
        except KafkaException as error:  # fatal, such as after an unclean election
            report(f"failed topic={TOPIC} id={order}")
            print(f"the producer gives up: {error.args[0].str()}", file=sys.stderr)
            return
        number += 1
        producer.poll(0)
        stopping.wait(1 / ORDERS_PER_S)
    producer.flush(30)


def commit(consumer: Consumer, positions: dict) -> None:
    """Commits what was processed, and reports it when the cluster has acknowledged it."""
    if not positions:
        return
    offsets = [TopicPartition(TOPIC, partition, offset) for partition, offset in positions.items()]
    try:
        consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException:
        return  # the next commit will do
    for partition, offset in positions.items():
        report(f"committed group={GROUP} topic={TOPIC} partition={partition} offset={offset}")
    positions.clear()


def consume(bootstrap_servers: str, group_protocol: str, is_done) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 2,
            "group.id": GROUP,
            "group.protocol": group_protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    positions: dict = {}
    consumer.subscribe([TOPIC], on_revoke=lambda _, partitions: commit(consumer, positions))
    committed_at = time.monotonic()
    while not is_done():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            order = message.key().decode()
            billed.add(order)  # the work on the record
            report(
                f"consumed group={GROUP} topic={TOPIC} partition={message.partition()} offset={message.offset()} id={order}"
            )
            positions[message.partition()] = message.offset() + 1
        if time.monotonic() > committed_at + 0.2:
            commit(consumer, positions)
            committed_at = time.monotonic()
    commit(consumer, positions)
    consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--acks", default="all")
    parser.add_argument("--group-protocol", choices=("classic", "consumer"), default="classic")
    options = parser.parse_args()
    acks = options.acks
    bootstrap_servers = os.environ["BOOTSTRAP_SERVERS"]
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "log_level": 2,
        "acks": acks,
        "enable.idempotence": acks == "all",
    }
    producing = threading.Thread(target=produce, args=(settings,))
    producing.start()
    consume(bootstrap_servers, options.group_protocol, lambda: not producing.is_alive() and acknowledged <= billed)
    producing.join()


if __name__ == "__main__":
    main()
