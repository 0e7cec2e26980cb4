"""Kafka's command line tools. This adapter starts them and says what they print.

The tools print neither acknowledgements nor positions, assignments and commits. Their log has these, and log4j's settings choose
how much of it is written (tools.log4j.properties).
"""

from __future__ import annotations

import atexit
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tests.clients.java import KAFKA, java
from tests.clients.programs.python_program import (
    Request,
    Unsupported,
    did,
    run,
    say,
    say_login,
    say_refused,
    stdin_closed,
)
from tests.support.kafka_tools import SERVED, tool_server

PRODUCER = "kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
SECURITY = "org.apache.kafka.common.security"
LOG_SETTINGS = f"{__file__.removesuffix('program.py')}tools"

PRODUCED = re.compile(r"Successfully produced messages to \S+-(\d+) with base offset (-?\d+)")
POSITIONED = re.compile(r"Resetting offset for partition \S+ to position")
ASSIGNED = re.compile(
    r"(Adding newly assigned|Revoke previously assigned|Lost previously assigned) partitions:? (.*) \(org"
)
RECONCILED = re.compile(r"^\s+Assigned partitions:\s+\[(.*)\]")
"""In a group of the new kind: all partitions that the member has from now on."""
PARTITION = re.compile(r"-(\d+)(?:,|$)")
COMMITTED = re.compile(
    r"(?:Committed offset|OffsetCommit completed successfully for offset) (\d+) (?:for )?partition \S+-(\d+)"
)
NO_KEY = r"\N"
MEMBER = {"auto.commit.interval.ms": "200"}
CLASSIC_MEMBER = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
"""Of a group of the new kind, the broker has these settings."""
PRINTED = ("timestamp", "partition", "offset", "key")
SEEN_WITHIN_S = STARTED_WITHIN_S = 30.0
POLL_S = 0.05


def options(name: str, settings: dict[str, str]) -> list[str]:
    """`--name key=value` for each."""
    return [word for key, value in settings.items() for word in (f"--{name}", f"{key}={value}")]


def connection(request: Request, option: str) -> list[str]:
    """The options for a cluster, and for the login there; `option` is the tool's name of the one for a file of settings."""
    words = ["--bootstrap-server", request["bootstrap"]]
    return [*words, f"--{option}", str(login_file(request["security"]))] if "security" in request else words


def login_file(security: dict[str, str]) -> Path:
    """A file that is there as long as this process."""
    directory = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, directory)
    file = Path(directory, "client.properties")
    file.write_text("".join(f"{key}={value}\n" for key, value in login_settings(security).items()))
    return file


def login_settings(security: dict[str, str]) -> dict[str, str]:
    """As in `putLogin` of Client.java."""
    settings = {"ssl.truststore.type": "PEM", "ssl.truststore.location": security["authority"]}
    if "certificate" in security:
        own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": security["certificate"]}
        return {**settings, "security.protocol": "SSL", **own}
    settings |= {"security.protocol": "SASL_SSL", "sasl.mechanism": security["mechanism"]}
    if "token" in security:
        return {
            **settings,
            "sasl.oauthbearer.token.endpoint.url": Path(security["token"]).as_uri(),
            "sasl.login.callback.handler.class": f"{SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.jaas.config": f"{SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
        }
    module = "plain.Plain" if security["mechanism"] == "PLAIN" else "scram.Scram"
    who = f'username="{security["user"]}" password="{security["password"]}"'
    return {**settings, "sasl.jaas.config": f"{SECURITY}.{module}LoginModule required {who};"}


class Tool:
    """A running tool. `on_line` is called with each line of its log, in another thread."""

    def __init__(self, on_line: Callable[[str], None], *arguments: str) -> None:
        self._on_line = on_line
        self.process = subprocess.Popen(
            java(KAFKA.class_path, *arguments, log_settings=LOG_SETTINGS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    @property
    def stdin(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def wait(self, *allowed: int) -> None:
        """Ends this process, too, if the tool's exit code is neither 0 nor allowed."""
        code = self.process.wait()
        self._listener.join()
        if code not in (0, *allowed):
            sys.exit(f"the tool's exit code is {code}")

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._on_line(line)
            if " TRACE " not in line and " DEBUG " not in line:
                print(line, end="", file=sys.stderr, flush=True)


# produce and consume


def produce(request: Request) -> None:
    """`--sync` sends a record when the one before is acknowledged. The acknowledgements are therefore in the order of the values."""
    values = iter(request["values"])
    begun = threading.Event()

    def on_line(line: str) -> None:
        if found := PRODUCED.search(line):
            begun.set()
            say(acked=next(values), partition=int(found[1]), offset=int(found[2]))

    settings = {
        "enable.idempotence": str(request["idempotent"]).lower(),
        "linger.ms": "0",
        "retries": "2147483647",
        "request.timeout.ms": "10000",
    }
    arguments = [*connection(request, "producer.config"), "--topic", request["topic"], "--sync"]
    arguments += ["--compression-codec", request["compression"], "--request-required-acks", request["acks"]]
    arguments += options("producer-property", settings)
    keys = request["keys"]
    tool = Tool(on_line, PRODUCER, *arguments, *(["--property", "parse.key=true"] if keys else []))
    for number, value in enumerate(request["values"]):
        tool.stdin.write(f"{keys[number]}\t{value}\n" if keys else f"{value}\n")
        tool.stdin.flush()
        if request["pause_ms"]:
            begun.wait(STARTED_WITHIN_S)  # or the pauses would be over before the tool has started
        time.sleep(request["pause_ms"] / 1000)
    tool.stdin.close()
    tool.wait()


def reading(request: Request) -> list[str]:
    """What both readers have in common."""
    printed = {f"print.{name}": "true" for name in PRINTED} | {"null.literal": NO_KEY}
    return [
        CONSUMER,
        *connection(request, "consumer.config"),
        *("--topic", request["topic"]),
        *options("property", printed),
    ]


def parsed(line: str) -> tuple[int, int, int, str | None, str]:
    """-> timestamp in ms, partition, offset, key, value"""
    timestamp, partition, offset, key, value = line.rstrip("\n").split("\t", len(PRINTED))
    numbers = [int(field.rpartition(":")[2]) for field in (timestamp, partition, offset)]
    return numbers[0], numbers[1], numbers[2], None if key == NO_KEY else key, value


def consume(request: Request) -> None:
    start = request["from"]
    if isinstance(start, dict) and "timestamp_ms" in start:
        start = {"offset": offset_of_time(request, start["timestamp_ms"])}
    is_offset = isinstance(start, dict)

    def on_line(line: str) -> None:
        if POSITIONED.search(line) and not is_offset:
            say(ready=True)

    if is_offset:
        say(ready=True)
    tool = Tool(
        on_line,
        *reading(request),
        *("--partition", str(request["partition"])),
        *("--offset", str(start["offset"]) if is_offset else start),
        *("--max-messages", str(request["count"])),
        *("--isolation-level", request["isolation"]),
    )
    for line in tool.stdout:
        timestamp_ms, partition, offset, key, value = parsed(line)
        say(value=value, key=key, partition=partition, offset=offset, timestamp_ms=timestamp_ms)
    tool.wait()


def offset_of_time(request: Request, timestamp_ms: int) -> int:
    where = f"{request['topic']}:{request['partition']}"
    printed = succeeded(request, OFFSETS, "--topic-partitions", where, "--time", str(timestamp_ms))
    found = re.search(rf"{re.escape(where)}:(\d+)", printed)
    assert found, printed
    return int(found[1])


def group(request: Request) -> None:
    """The tool commits by itself, every `auto.commit.interval.ms` and at its end."""
    closed = stdin_closed()
    assigned: set[int] = set()
    committed: dict[int, int] = {}

    def on_line(line: str) -> None:
        if found := ASSIGNED.search(line):
            partitions = {int(number) for number in PARTITION.findall(found[2])}
            is_added = found[1].startswith("Adding")
            (assigned.update if is_added else assigned.difference_update)(partitions)
            say(assigned=sorted(assigned))
        elif found := RECONCILED.search(line):
            assigned.clear()
            assigned.update(int(number) for number in PARTITION.findall(found[1]))
            say(assigned=sorted(assigned))
        elif found := COMMITTED.search(line):
            offset, partition = int(found[1]), int(found[2])
            if committed.get(partition) != offset:
                committed[partition] = offset
                say(committed={str(partition): offset})

    kind = {"group.protocol": request["protocol"]} if "protocol" in request else CLASSIC_MEMBER
    arguments = ["--group", request["group"], "--from-beginning", *options("consumer-property", {**MEMBER, **kind})]
    tool = Tool(on_line, *reading(request), *arguments)

    def end() -> None:
        closed.wait()
        tool.process.send_signal(signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    for line in tool.stdout:
        _, partition, offset, _, value = parsed(line)
        say(value=value, partition=partition, offset=offset)
    tool.wait(128 + signal.SIGTERM)


# what no tool has


def transact(request: Request) -> None:
    raise Unsupported("ConsoleProducer writes no transactions")


def pipeline(request: Request) -> None:
    raise Unsupported("no tool writes records and commits offsets in one transaction")


# admin


def used(request: Request, tool: str, *arguments: str) -> tuple[int, str]:
    """-> exit code, and what it printed"""
    words = [tool, *connection(request, "command-config"), *arguments]
    if tool in SERVED:
        return tool_server().run(words)
    done = subprocess.run(java(KAFKA.class_path, *words), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def succeeded(request: Request, tool: str, *arguments: str) -> str:
    code, printed = used(request, tool, *arguments)
    assert code == 0, printed
    return printed


def seen(look: Callable[[], tuple[int, str]], wanted: str) -> str:
    """What is printed, as soon as it has `wanted`: a change reaches all brokers a moment after its answer."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    while True:
        code, printed = look()
        if code == 0 and wanted in printed:
            return wanted
        assert time.monotonic() < deadline, f"without {wanted}: {printed}"
        time.sleep(POLL_S)


def admin(request: Request) -> None:
    name = request["topic"]

    def topics(*arguments: str) -> str:
        return succeeded(request, TOPICS, *arguments)

    def describe(tool: str, *arguments: str) -> Callable[[], tuple[int, str]]:
        return lambda: used(request, tool, "--describe", *arguments)

    counts: Sequence[str] = ("--partitions", "2", "--replication-factor", "3", "--config", "retention.ms=3600000")
    topics("--create", "--topic", name, *counts)
    did("create_topics", name)
    did("describe_topics", seen(describe(TOPICS, "--topic", name), "PartitionCount: 2"))
    topics("--alter", "--topic", name, "--partitions", "4")
    did("create_partitions", seen(describe(TOPICS, "--topic", name), "PartitionCount: 4"))
    entity = ("--entity-type", "topics", "--entity-name", name)
    succeeded(request, CONFIGS, "--alter", *entity, "--add-config", "retention.ms=7200000")
    did("alter_configs", "retention.ms=7200000")
    did("describe_configs", seen(describe(CONFIGS, *entity), "retention.ms=7200000"))
    did("list_topics", topics("--list").split())
    did("list_groups", succeeded(request, GROUPS, "--list").split())
    topics("--delete", "--topic", name)
    did("delete_topics", name)


# what is refused


def login(request: Request) -> None:
    code, printed = used(request, TOPICS, "--list")
    if code == 0:
        say_login(None)
    elif "SaslAuthenticationException" in printed:
        say_login("SASL_AUTHENTICATION_FAILED", printed)
    else:
        sys.exit(printed)


def denied(request: Request) -> None:
    """Each tool has one topic, and ends with an error where it may not do what it should."""
    others = request["denied"]
    settings = {"keys": None, "idempotent": False, "compression": "none", "acks": "all", "pause_ms": 0}
    produce({**request, **settings, "values": [*request["before"], *request["after"]]})

    def refused(to: str, name: str, *arguments: str) -> None:
        command = java(KAFKA.class_path, *arguments, "--topic", name)
        done = subprocess.run(command, input="denied\n", capture_output=True, text=True, check=False)
        if "TopicAuthorizationException" in done.stdout + done.stderr:
            say_refused("TOPIC_AUTHORIZATION_FAILED", to=to, topic=name, saw=done.stderr)
        else:
            sys.exit(f"{name}: {done.returncode} {done.stdout} {done.stderr}")

    for name in others:
        refused("write", name, PRODUCER, *connection(request, "producer.config"), "--sync")
        refused("read", name, CONSUMER, *connection(request, "consumer.config"), "--partition", "0", "--offset", "0")
    count = len(request["before"]) + len(request["after"])
    consume({**request, "from": {"offset": 0}, "partition": 0, "count": count, "isolation": "read_committed"})


if __name__ == "__main__":
    sys.exit(run(globals()))
