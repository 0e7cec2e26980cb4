"""A group whose members come and go, for `ottla verify run`: the verdict says whether each partition had one owner at any time.

    ottla verify run --topic orders:40 --fault "kill coordinator of billing at 5s" -- \\
        python examples/python/members.py --group-protocol consumer

One member joins after the other until there are `--members`, then one after the other leaves until one is left, and so on.
"""

import argparse
import itertools
import os
import signal
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

TOPIC, GROUP = "orders", "billing"
ORDERS_PER_S = 200
COMMIT_INTERVAL_S = 0.5

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


def produce(bootstrap_servers: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 2, "enable.idempotence": True})
    for number in itertools.count():
        if stopping.is_set():
            break
        order = f"order-{number}"
        report(f"produced topic={TOPIC} id={order}")  # before it is sent
        producer.produce(TOPIC, key=order, value=f"{number} pieces", on_delivery=delivered)
        producer.poll(0)
        stopping.wait(1 / ORDERS_PER_S)
    producer.flush(30)


class Member:
    """A consumer in a thread of its own, which reports what it owns, reads and commits."""

    def __init__(self, number: int, settings: dict) -> None:
        self.name = f"member-{number}"
        self._consumer = Consumer({**settings, "client.id": self.name})
        self._positions: dict = {}
        """Partition -> the offset to commit."""
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def ask_to_leave(self) -> None:
        self._leaving.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        self._consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        committed_at = time.monotonic()
        while not self._leaving.is_set():
            self._poll()
            if time.monotonic() > committed_at + COMMIT_INTERVAL_S:
                self._commit()
                committed_at = time.monotonic()
        self._commit()
        self._consumer.unsubscribe()
        while self._consumer.assignment():
            self._consumer.poll(0.1)
        self._consumer.close()
        report(f"left group={GROUP} member={self.name}")

    def _poll(self) -> None:
        message = self._consumer.poll(0.1)
        if message is None or message.error() is not None:
            return
        order = message.key().decode()
        billed.add(order)  # the work on the record
        place = f"partition={message.partition()} offset={message.offset()}"
        report(f"consumed group={GROUP} topic={TOPIC} {place} id={order}")
        self._positions[message.partition()] = message.offset() + 1

    def _commit(self) -> None:
        """Commits what was processed, and reports it when the cluster has acknowledged it."""
        if not self._positions:
            return
        offsets = [TopicPartition(TOPIC, partition, offset) for partition, offset in self._positions.items()]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            print(f"{self.name}: commit: {error.args[0].str()}", file=sys.stderr)
            return  # the next commit, or the partition's next owner, commits them
        for each in done:
            if each.error is None:
                report(f"committed group={GROUP} topic={TOPIC} partition={each.partition} offset={each.offset}")
                self._positions.pop(each.partition, None)

    def _assigned(self, _, partitions) -> None:
        for each in partitions:
            report(f"assigned group={GROUP} member={self.name} topic={each.topic} partition={each.partition}")

    def _revoked(self, _, partitions) -> None:
        self._commit()  # while they are still its own
        self._lost(_, partitions)

    def _lost(self, _, partitions) -> None:
        for each in partitions:
            self._positions.pop(each.partition, None)
            report(f"revoked group={GROUP} member={self.name} topic={each.topic} partition={each.partition}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument(
        "--every", type=float, default=1.0, metavar="SECONDS", help="the time until the next one joins or leaves"
    )
    parser.add_argument("--group-protocol", choices=("classic", "consumer"), default="classic")
    options = parser.parse_args()
    bootstrap_servers = os.environ["BOOTSTRAP_SERVERS"]
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "log_level": 2,
        "group.id": GROUP,
        "group.protocol": options.group_protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if options.group_protocol == "classic":
        settings["partition.assignment.strategy"] = "cooperative-sticky"
    producing = threading.Thread(target=produce, args=(bootstrap_servers,))
    producing.start()
    members, leaving, is_growing = [], [], True
    numbers = itertools.count(1)
    while not stopping.is_set():
        if is_growing:
            members.append(Member(next(numbers), settings))
        else:
            leaving.append(members.pop(0))
            leaving[-1].ask_to_leave()
        if len(members) in (1, options.members):
            is_growing = len(members) == 1
        stopping.wait(options.every)
    producing.join()
    while not acknowledged <= billed:
        time.sleep(0.1)
    for member in members:
        member.ask_to_leave()
    for member in (*members, *leaving):
        member.join()


if __name__ == "__main__":
    main()
