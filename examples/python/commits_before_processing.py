"""A planted bug that `ottla verify run` finds: the library commits records before the program has processed them.

    ottla verify run --topic payments:1 -- python examples/python/commits_before_processing.py

`enable.auto.commit` commits what `consume` has returned. The worker crashes in the middle of a batch and is started again: it goes
on behind the records that it had not processed yet. No broker has to fail for that.
"""

import os
import subprocess
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

TOPIC, GROUP = "payments", "bank"
PAYMENTS, BATCH = 300, 100
CRASH_AFTER = 130
"""In the middle of a batch."""


def report(line: str) -> None:
    sys.stdout.write(f"@ottla {line}\n")
    sys.stdout.flush()


def delivered(error, message) -> None:
    assert error is None, error
    offset = -1 if message.offset() is None else message.offset()  # librdkafka may not know it
    report(f"acked topic={TOPIC} partition={message.partition()} offset={offset} id={message.key().decode()}")


def produce() -> None:
    producer = Producer(
        {"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"], "enable.idempotence": True, "log_level": 2}
    )
    for number in range(PAYMENTS):
        report(f"produced topic={TOPIC} partition=0 id=payment-{number}")
        producer.produce(TOPIC, key=f"payment-{number}", partition=0, on_delivery=delivered)
    producer.flush()


def committed(error, partitions) -> None:
    for each in partitions if error is None else ():
        report(f"committed group={GROUP} topic={TOPIC} partition={each.partition} offset={each.offset}")


def work(crashes: bool) -> None:
    """Reads until the last payment."""
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"],
            "log_level": 2,
            "group.id": GROUP,
            "session.timeout.ms": 6000,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,  # the bug
            "auto.commit.interval.ms": 50,
            "on_commit": committed,
        }
    )
    consumer.subscribe([TOPIC])
    processed, last = 0, -1
    while last < PAYMENTS - 1:
        batch = [message for message in consumer.consume(BATCH, timeout=1) if message.error() is None]
        for message in batch:
            if crashes and processed >= CRASH_AFTER:
                wait_until_committed(consumer, batch[-1].offset() + 1)
                os._exit(1)
            last, processed = message.offset(), processed + 1
            report(
                f"consumed group={GROUP} topic={TOPIC} partition=0 offset={message.offset()} id={message.key().decode()}"
            )
    consumer.close()


def wait_until_committed(consumer: Consumer, offset: int) -> None:
    """The crash comes when the library has committed the whole batch in the background, as it does in a slow program sooner or later."""
    while consumer.committed([TopicPartition(TOPIC, 0)])[0].offset < offset:
        time.sleep(0.02)


def main() -> None:
    if len(sys.argv) > 1:
        work(crashes=sys.argv[1] == "crashes")
        return
    produce()
    for how in ("crashes", "works"):
        subprocess.run([sys.executable, __file__, how], check=False)


if __name__ == "__main__":
    main()
