"""kcat: a command line tool that is built on librdkafka. This adapter starts it and says what it prints.

kcat reports deliveries without their values (`-vv`). Within a partition they come in the order of the records, so the adapter
takes the values in turn: the topic must have one partition.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.clients.programs.python_program import (
    Request,
    Unsupported,
    did,
    librdkafka_connection,
    only_classic_groups,
    run,
    say,
    say_login,
    say_refused,
    stdin_closed,
)

DELIVERED = re.compile(rb"Message delivered to partition (-?\d+) \(offset (-?\d+)\)")
REBALANCED = re.compile(rb"% Group .* rebalanced .*: (assigned|revoked): ?(.*)")
PARTITION = re.compile(rb"\[(\d+)\]")
QUERIED = re.compile(r"offset (-?\d+)")
KEY_DELIMITER = "\t"
POLL_S = 0.05


def command(request: Request, *options: str) -> list[str]:
    if "token" in request.get("security", {}):
        raise Unsupported("it makes unsecured tokens, or asks an OpenID provider, and takes none from a file")
    settings = [f"{name}={value}" for name, value in librdkafka_connection(request).items()]
    return ["kcat", *(word for setting in settings for word in ("-X", setting)), *options]


def produce(request: Request) -> None:
    options = ["-X", f"acks={request['acks']}", "-X", f"enable.idempotence={str(request['idempotent']).lower()}"]
    options += ["-z", request["compression"], *(["-K", KEY_DELIMITER] if request["keys"] else [])]
    producing = Producing(request, *options)
    producing.write(request)
    producing.wait()


class Producing:
    """A kcat that writes, and what it says of deliveries."""

    def __init__(self, request: Request, *arguments: str) -> None:
        self._process = subprocess.Popen(
            command(request, "-P", "-vv", "-E", "-t", request["topic"], "-X", "linger.ms=5", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._values = iter(request["values"])
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def write(self, request: Request) -> None:
        """The values as lines of its stdin, which is closed then. That ends the transaction, if there is one."""
        stdin = self._process.stdin
        assert stdin is not None
        keys = request.get("keys")
        for number, value in enumerate(request["values"]):
            line = f"{keys[number]}{KEY_DELIMITER}{value}\n" if keys else f"{value}\n"
            stdin.write(line.encode())
            if request.get("pause_ms"):
                stdin.flush()
                time.sleep(request["pause_ms"] / 1000)
        stdin.close()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        code = self._process.wait()
        self._listener.join()
        if code != 0:
            sys.exit(code)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            found = DELIVERED.search(line)
            if found:
                say(acked=next(self._values), partition=int(found[1]), offset=int(found[2]))
            else:
                sys.stderr.buffer.write(line)
                sys.stderr.flush()


def end_offset(request: Request, partition: int, isolation: str) -> int:
    options = ["-Q", "-t", f"{request['topic']}:{partition}:-1", "-X", f"isolation.level={isolation}"]
    printed = subprocess.run(command(request, *options), capture_output=True, text=True, check=True).stdout
    found = QUERIED.search(printed)
    assert found, printed
    return int(found[1])


def consume(request: Request) -> None:
    match request["from"]:
        case "earliest":
            start = "beginning"
        case "latest":
            start = str(end_offset(request, request["partition"], request["isolation"]))
        case {"offset": offset}:
            start = str(offset)
        case {"timestamp_ms": timestamp_ms}:
            start = f"s@{timestamp_ms}"
    options = ["-t", request["topic"], "-p", str(request["partition"]), "-o", start, "-c", str(request["count"])]
    reader = subprocess.Popen(
        command(request, "-C", "-q", "-E", "-u", "-J", *options, "-X", f"isolation.level={request['isolation']}"),
        stdout=subprocess.PIPE,
    )
    say(ready=True)
    for record in records_of(reader):
        say(
            value=record["payload"],
            key=record["key"],
            partition=record["partition"],
            offset=record["offset"],
            timestamp_ms=record["ts"],
        )
    sys.exit(reader.wait())


def records_of(reader: subprocess.Popen[bytes]) -> Iterator[Request]:
    assert reader.stdout is not None
    return (json.loads(line) for line in reader.stdout)


def group(request: Request) -> None:
    """It commits by itself (`enable.auto.commit`) and reports no commits, so there are no lines with "committed"."""
    only_classic_groups(request, "kcat")
    closed = stdin_closed()
    settings = ["session.timeout.ms=6000", "heartbeat.interval.ms=1000", "auto.offset.reset=earliest"]
    options = [word for setting in (*settings, "auto.commit.interval.ms=100") for word in ("-X", setting)]
    reader = subprocess.Popen(
        command(request, "-G", request["group"], "-E", "-u", "-J", *options, request["topic"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    listener = threading.Thread(target=say_assignments, args=[reader])
    listener.start()
    threading.Thread(target=lambda: closed.wait() and reader.send_signal(signal.SIGINT), daemon=True).start()
    for record in records_of(reader):
        say(value=record["payload"], partition=record["partition"], offset=record["offset"])
    listener.join()
    sys.exit(reader.wait())


def say_assignments(reader: subprocess.Popen[bytes]) -> None:
    assert reader.stderr is not None
    for line in reader.stderr:
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
        found = REBALANCED.search(line)
        if found:
            partitions = sorted(map(int, PARTITION.findall(found[2])))
            say(assigned=partitions if found[1] == b"assigned" else [])


def transact(request: Request) -> None:
    options = ["-X", f"transactional.id={request['transactional_id']}"]
    options += ["-p", str(request["partition"])] if "partition" in request else []
    if request["end"] == "commit":
        producing = Producing(request, *options)
        producing.write(request)
        producing.wait()
    else:
        abort(request, options)
    say(ended=request["end"])


def abort(request: Request, options: list[str]) -> None:
    """By Ctrl-C when all records are in the log: an abort discards what is not sent yet.

    kcat sends no line of its stdin before it has read much more, so each record is a file. The last one is a pipe: kcat
    waits for its writer, and then skips it because it is empty.
    """
    before = end_offset(request, 0, "read_uncommitted")
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name, str(number)) for number in range(len(request["values"]))]
        for file, value in zip(files, request["values"], strict=True):
            file.write_text(value)
        last = Path(name, "last")
        os.mkfifo(last)
        producing = Producing(request, *options, *map(str, files), str(last))
        while end_offset(request, 0, "read_uncommitted") < before + len(files):
            time.sleep(POLL_S)
        producing.interrupt()
        last.open("w").close()
        producing.wait()


def pipeline(request: Request) -> None:
    raise Unsupported("it does not commit offsets in a transaction")


def admin(request: Request) -> None:
    printed = subprocess.run(command(request, "-L", "-J"), capture_output=True, check=True).stdout
    did("list_topics", [topic["topic"] for topic in json.loads(printed)["topics"]])


DENIED = "Topic authorization failed"
"""librdkafka's words for TOPIC_AUTHORIZATION_FAILED."""


def login(request: Request) -> None:
    """kcat ends when no broker lets it in, and says why."""
    done = subprocess.run(command(request, "-L"), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        say_login(None)
    elif "Authentication failure" in done.stderr or "SASL authentication error" in done.stderr:
        say_login("SASL_AUTHENTICATION_FAILED", done.stderr)
    else:
        sys.exit(done.stderr)


def denied(request: Request) -> None:
    """kcat writes to one topic, and reads from one: it ends with an error where it may not."""
    topic, others = request["topic"], request["denied"]

    def write(values: list[str]) -> None:
        producing = Producing({**request, "values": values})
        producing.write({"values": values})
        producing.wait()

    def refused(to: str, name: str, *options: str) -> None:
        """`-t` is the last option: kcat takes what follows for files."""
        done = subprocess.run(
            command(request, *options, "-t", name), input="denied\n", capture_output=True, text=True, check=False
        )
        if done.returncode != 0 and DENIED in done.stderr:
            say_refused("TOPIC_AUTHORIZATION_FAILED", to=to, topic=name, saw=done.stderr)
        else:
            sys.exit(f"{name}: {done.returncode} {done.stdout} {done.stderr}")

    write(request["before"])
    for name in others:
        refused("write", name, "-P")
    write(request["after"])
    for name in others:
        refused("read", name, "-C", "-p", "0", "-o", "beginning", "-e")
    options = ["-C", "-q", "-u", "-J", "-t", topic, "-p", "0", "-o", "beginning", "-e"]
    reader = subprocess.Popen(command(request, *options), stdout=subprocess.PIPE)
    for record in records_of(reader):
        say(value=record["payload"], partition=record["partition"], offset=record["offset"])
    sys.exit(reader.wait())


if __name__ == "__main__":
    sys.exit(run(globals()))
