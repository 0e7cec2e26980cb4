"""Reads orders and writes an invoice for each in transactions, exactly once, and reports what it did for `ottla verify run`.

    ottla verify run --topic orders:4 --topic invoices:4 --fault "kill leader of invoices-0 at 5s" -- python examples/python/exactly_once.py

One thread produces orders. Two workers, each with a transactional producer, read them as a group, and send their offsets in the transaction
of their invoices. A third group reads the invoices as committed records.

The second transaction and each twentieth after it are aborted, as if an order could not be priced. `--bug` plants one of these bugs:

    offsets-outside     a worker commits its offsets by its consumer, not in the transaction
    uncommitted         the reader of the invoices reads uncommitted records
    abort-as-commit     a worker takes an abort for a commit, as if only the answer had been lost
    zombie              each worker reads all orders by itself, with a transactional id of its own, so nothing fences the other one
"""

import argparse
import itertools
import os
import signal
import sys
import threading
import time
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

ORDERS, INVOICES = "orders", "invoices"
WORKERS, READERS = "billing", "post"
ORDERS_PER_S = 100
ABORT_EVERY = 20
STUCK_S = 20
"""A worker that has not come round for so long is replaced: librdkafka 2.16 may lose a request when all brokers die at once."""
BUGS = ("offsets-outside", "uncommitted", "abort-as-commit", "zombie")

stopping = threading.Event()  # no more orders
done = threading.Event()  # everything is read
lock = threading.Lock()
ordered: set[str] = set()
invoiced: set[str] = set()
posted: set[str] = set()
numbers = itertools.count(1)


def report(line: str) -> None:
    with lock:
        sys.stdout.write(f"@ottla {line}\n")
        sys.stdout.flush()


def reporter(topic: str, txn: str = ""):
    """The callback of a delivery."""

    def delivered(error, message) -> None:
        id_ = message.key().decode()
        within = f" txn={txn}" if txn else ""
        if error is not None:
            report(f"failed topic={topic}{within} id={id_}")
            return
        offset = -1 if message.offset() is None else message.offset()
        report(f"acked topic={topic} partition={message.partition()} offset={offset}{within} id={id_}")
        if not txn:
            ordered.add(id_)

    return delivered


def produce_orders(settings: dict) -> None:
    producer = Producer({**settings, "enable.idempotence": True})
    for number in itertools.count():
        if stopping.is_set():
            break
        order = f"order-{number}"
        report(f"produced topic={ORDERS} id={order}")
        producer.produce(ORDERS, key=order, value=f"{number} pieces", on_delivery=reporter(ORDERS))
        producer.poll(0)
        stopping.wait(1 / ORDERS_PER_S)
    producer.flush(30)


class Ended(Exception):
    """The worker shall not try again."""


class Worker:
    """Reads orders and writes invoices, in transactions."""

    def __init__(self, settings: dict, name: str, bug: str | None) -> None:
        self.settings, self.name, self.bug = settings, name, bug
        self.came_round_at = time.monotonic()
        self.is_replaced = False
        self.consumer = Consumer(
            {
                **settings,
                "group.id": WORKERS,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "max.poll.interval.ms": STUCK_S * 1000,
            }
        )

    def new_producer(self) -> Producer:
        producer = Producer(
            {**self.settings, "transactional.id": f"billing-{self.name}", "transaction.timeout.ms": 20_000}
        )
        self.until_it_works(lambda: producer.init_transactions(10))
        return producer

    def run(self) -> None:
        with suppress(Ended):
            self.work()
        self.consumer.close()

    def work(self) -> None:
        self.producer = self.new_producer()
        if self.bug == "zombie":
            self.consumer.assign([TopicPartition(ORDERS, number, 0) for number in range(4)])
        else:
            self.consumer.subscribe([ORDERS])
        while not done.is_set() and not self.is_replaced:
            self.came_round_at = time.monotonic()
            messages = [message for message in self.consumer.consume(50, timeout=0.2) if message.error() is None]
            if not messages:
                self.producer.poll(0)
            elif not self.transaction(messages):
                self.go_back(messages)

    def transaction(self, messages: list) -> bool:
        """Whether the orders are done."""
        number = next(numbers)
        txn = f"t{number}"
        report(f"begun txn={txn} transactional-id=billing-{self.name}")
        try:
            self.producer.begin_transaction()
            for message in messages:
                self.invoice(message, txn)
            self.send_offsets(messages, txn)
            if number % ABORT_EVERY == 2:
                self.producer.flush(10)
                return self.abort(txn)
            report(f"committing txn={txn}")
            self.until_it_works(lambda: self.producer.commit_transaction(10))
        except KafkaException as error:
            return self.give_up(error.args[0], txn)
        report(f"committed-txn txn={txn}")
        invoiced.update(f"invoice of {message.key().decode()}" for message in messages)
        return True

    def invoice(self, message, txn: str) -> None:
        order = message.key().decode()
        place = f"topic={ORDERS} partition={message.partition()} offset={message.offset()}"
        report(f"consumed group={WORKERS} {place} txn={txn} id={order}")
        invoice = f"invoice of {order}"
        report(f"produced topic={INVOICES} producer={self.name} txn={txn} id={invoice}")
        self.producer.produce(INVOICES, key=invoice, on_delivery=reporter(INVOICES, txn))
        self.producer.poll(0)

    def send_offsets(self, messages: list, txn: str) -> None:
        ends = {message.partition(): message.offset() + 1 for message in messages}
        offsets = [TopicPartition(ORDERS, partition, offset) for partition, offset in ends.items()]
        if self.bug == "zombie":
            return  # two members that own the same partitions cannot commit both
        if self.bug == "offsets-outside":
            self.consumer.commit(offsets=offsets, asynchronous=False)
        else:
            metadata = self.consumer.consumer_group_metadata()
            self.until_it_works(lambda: self.producer.send_offsets_to_transaction(offsets, metadata, 10))
        for each in offsets:
            place = f"group={WORKERS} topic={ORDERS} partition={each.partition} offset={each.offset}"
            outside = self.bug == "offsets-outside"
            report(f"committed {place}" if outside else f"sent-offsets txn={txn} {place}")

    def abort(self, txn: str) -> bool:
        self.until_it_works(lambda: self.producer.abort_transaction(10))
        if self.bug == "abort-as-commit":
            report(f"committed-txn txn={txn}")
            return True
        report(f"aborted-txn txn={txn}")
        return self.bug == "offsets-outside"  # whoever goes on from the committed offsets does not go back

    def give_up(self, error, txn: str) -> bool:
        """Aborts, if it can. Else nobody knows the end of the transaction, and the next producer begins anew."""
        print(f"{self.name}: {txn}: {error.str()}", file=sys.stderr)
        if error.txn_requires_abort():
            try:
                self.until_it_works(lambda: self.producer.abort_transaction(10))
                report(f"aborted-txn txn={txn}")
                return False
            except KafkaException:
                pass
        self.producer = self.new_producer()
        return False

    def go_back(self, messages: list) -> None:
        """To what is committed, if the partitions are still this worker's."""
        mine = self.consumer.assignment()
        wanted = [each for each in mine if each.partition in {message.partition() for message in messages}]
        first = {message.partition(): message.offset() for message in reversed(messages)}
        if self.bug == "zombie":
            places = [TopicPartition(ORDERS, partition, offset) for partition, offset in first.items()]
        else:
            places = []
            for each in self.committed(wanted):
                each.offset = max(each.offset, 0)
                places.append(each)
        for each in places:
            with suppress(KafkaException):  # the partition may have moved meanwhile
                self.consumer.seek(each)

    def committed(self, partitions: list) -> list:
        while partitions and not done.is_set():
            try:
                return self.consumer.committed(partitions, timeout=10)
            except KafkaException as error:  # such as when the coordinator moves
                print(f"{self.name}: {error.args[0].str()}", file=sys.stderr)
                time.sleep(0.1)
        return []

    def until_it_works(self, work) -> None:
        """Tries again after errors that pass. Raises Ended."""
        while True:
            try:
                work()
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                if done.is_set() or self.is_replaced:
                    raise Ended from None
                print(f"{self.name}: {error.args[0].str()}", file=sys.stderr)
                time.sleep(0.1)


def post(settings: dict, bug: str | None) -> None:
    """Reads the invoices."""
    consumer = Consumer(
        {
            **settings,
            "group.id": READERS,
            "isolation.level": "read_uncommitted" if bug == "uncommitted" else "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([INVOICES])
    while not done.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            invoice = message.key().decode()
            posted.add(invoice)
            place = f"topic={INVOICES} partition={message.partition()} offset={message.offset()}"
            report(f"consumed group={READERS} {place} id={invoice}")
    consumer.close()


def replace(worker: Worker) -> Worker:
    """Another worker, whose producer fences that of the old one. The group gives it the partitions that the old one had."""
    print(f"worker {worker.name} is stuck", file=sys.stderr)
    worker.is_replaced = True
    new = Worker(worker.settings, worker.name, worker.bug)
    threading.Thread(target=new.run, daemon=True).start()
    return new


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", choices=BUGS)
    bug = parser.parse_args().bug
    settings = {"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"], "log_level": 2}
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    producing = threading.Thread(target=produce_orders, args=(settings,))
    producing.start()

    def reading() -> None:
        post(settings, bug)

    workers = [Worker(settings, name, bug) for name in ("a", "b")]
    threads = [threading.Thread(target=work, daemon=True) for work in (*(worker.run for worker in workers), reading)]
    for thread in threads:
        thread.start()
    deadline = None
    while deadline is None or time.monotonic() < deadline:
        if deadline is None and not producing.is_alive():
            deadline = time.monotonic() + (60 if bug is None else 10)
        if deadline and bug is None and len(invoiced) >= len(ordered) and set(invoiced) <= set(posted):
            break
        for number, worker in enumerate(workers):
            if time.monotonic() - worker.came_round_at > STUCK_S:
                workers[number] = replace(worker)
        time.sleep(0.1)
    done.set()
    for thread in threads:
        thread.join(10)


if __name__ == "__main__":
    main()
