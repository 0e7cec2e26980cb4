"""The clients of the matrix, and the features that each is tested for.

A client is an unmodified library or tool. A program drives it and speaks the protocol of docs/CLIENTS.md, so the tests do not
know which client they test. To add a client: write its program in `programs/`, and add a row to CLIENTS.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version as version_of_distribution
from pathlib import Path
from typing import Any

from tests.clients.builds import GO, NODE, RUST, go_version, node_version, rust_version
from tests.clients.java import KAFKA, NEWEST_CLIENT, Jars, java_client

REPOSITORY = Path(__file__).resolve().parents[2]
BUILDS = REPOSITORY / ".clients"
"""Where programs are built; git does not track it, and `make clean` removes it."""

FEATURES = (
    "none",
    "gzip",
    "snappy",
    "lz4",
    "zstd",
    "acks",
    "idempotent",
    "earliest",
    "latest",
    "offset",
    "time",
    "committed",
    "rebalance",
    "resume",
    "new groups",
    "transactions",
    "exactly once",
    "admin",
    "failover",
    "TLS and PLAIN",
    "TLS and SCRAM",
    "OAUTHBEARER",
    "mutual TLS",
    "denied",
)
"""In the order of the columns in docs/CLIENTS.md."""
AT_LEVEL_4 = "new groups"
"""The feature that needs brokers with the APIs of Kafka 4."""
SECURED_FEATURES = FEATURES[FEATURES.index("TLS and PLAIN") :]
"""Those that need the brokers of `secured.py`."""


SASL_AUTHENTICATION_FAILED = "SASL_AUTHENTICATION_FAILED"


@dataclass(frozen=True, eq=False, slots=True)
class Client:
    """A row of the matrix. `name` is what users call it."""

    name: str
    language: str
    version: Callable[[], str]
    command: Callable[[], list[str]]
    """The program; a verb and JSON are appended. It runs in the root of the repository."""
    missing: Callable[[], str | None]
    """Finds or builds the program. -> None, or why that is not possible here"""
    is_librdkafka: bool = False
    """Then another client than librdkafka writes what it reads, and reads what it writes."""
    lacks: frozenset[str] = frozenset()
    """The features that the library does not have. Its program must answer "unsupported" for them, and for no others."""
    fails: Mapping[str, str] = field(default_factory=dict)
    """Recipe (docs/FAULTS.md) -> why the library may lose or double records in it."""
    stops: Mapping[str, str] = field(default_factory=dict)
    """Recipe -> why its program may have to be started again."""
    logs_in_again: bool = True
    """KIP-368: on the connection that it has, before the time of its login is over. Others open a new connection."""
    refused_token: str = SASL_AUTHENTICATION_FAILED
    """What the library says of a token that a broker refuses. The broker names its error in its second answer (RFC 7628), for which not
    every library waits."""

    def why_not(self) -> str | None:
        """Why the client cannot be tested here; None if it can. The first call may build its program."""
        return _why_not(self)


@functools.cache
def _why_not(client: Client) -> str | None:
    return client.missing()


def lacking(*features: str) -> frozenset[str]:
    """A checked value for `lacks`."""
    unknown = set(features) - set(FEATURES)
    if unknown:
        raise ValueError(f"no such features: {unknown}")
    return frozenset(features)


def python_client(name: str, program: str, distribution: str, **facts: Any) -> Client:
    """A library that `make setup` installs; `program` is a package of `programs/`. `facts`: further fields of Client."""
    return Client(
        name,
        "Python",
        version=lambda: version_of_distribution(distribution),
        command=lambda: [sys.executable, "-m", f"tests.clients.programs.{program}.program"],
        missing=lambda: None,
        **facts,
    )


def kcat_version() -> str:
    printed = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Version (\S+) .*librdkafka (\S+)", printed)
    return f"{found[1]} (librdkafka {found[2]})" if found else "unknown"


def kcat_missing() -> str | None:
    return None if shutil.which("kcat") else "kcat is not installed (apt-get install kcat)"


def kafkas_java_client(name: str, jars: Jars) -> Client:
    """Kafka's own library, of one of two releases."""
    program = java_client(jars)
    return Client(
        name,
        "Java",
        version=lambda: jars.version("kafka-clients"),
        command=program.command,
        missing=program.missing,
    )


SENT_AGAIN = ("leader-moved", "lost-ack", "stale-metadata", "half-an-answer", "refused", "slow-broker")
"""Recipes in which a record may be written whose acknowledgement does not arrive."""
NOT_IDEMPOTENT = "it has no idempotent producer: a record whose acknowledgement is lost is written twice"
ANOTHER_PARTITION = (
    "a record without a key goes to another partition when it is sent again: it is written twice, and the next one of the first "
    "partition has its sequence number, so it is acknowledged and not written"
)
DEAD_COORDINATOR = "it sends commits to the dead coordinator, and reads nothing more, until that broker is back or its retries are over"
THROTTLED_TWICE = "it sends a throttled request again, although the broker has done it: the record is written twice"

CLIENTS = [
    python_client("confluent-kafka", "confluent", "confluent-kafka", is_librdkafka=True),
    python_client(
        "kafka-python",
        "kafka_python",
        "kafka-python",
        lacks=lacking("new groups"),
        stops={"refused": "`poll` may raise KafkaConnectionError when a broker closes a new connection"},
    ),
    python_client(
        "aiokafka",
        "aiokafka",
        "aiokafka",
        lacks=lacking("new groups"),
        logs_in_again=False,
        refused_token="KafkaConnectionError",
    ),
    Client(
        "kcat",
        "command line",
        version=kcat_version,
        command=lambda: [sys.executable, "-m", "tests.clients.programs.kcat.program"],
        missing=kcat_missing,
        is_librdkafka=True,
        lacks=lacking("new groups", "exactly once", "OAUTHBEARER"),
    ),
    Client(
        "franz-go",
        "Go",
        version=lambda: go_version("github.com/twmb/franz-go"),
        command=lambda: [GO.program("franz")],
        missing=GO.missing,
        stops={"lost-ack": "each lost answer costs up to 5 s, until it asks for metadata again"},
        refused_token="unexpected data in oauth response",
    ),
    Client(
        "sarama",
        "Go",
        version=lambda: go_version("github.com/IBM/sarama"),
        command=lambda: [GO.program("sarama")],
        missing=GO.missing,
        lacks=lacking("new groups"),
    ),
    Client(
        "kafka-go",
        "Go",
        version=lambda: go_version("github.com/segmentio/kafka-go"),
        command=lambda: [GO.program("kafkago")],
        missing=GO.missing,
        lacks=lacking("idempotent", "committed", "new groups", "transactions", "exactly once", "OAUTHBEARER"),
        fails=dict.fromkeys(SENT_AGAIN, NOT_IDEMPOTENT),
    ),
    Client(
        "KafkaJS",
        "JavaScript",
        version=lambda: node_version("kafkajs"),
        command=lambda: ["node", NODE.program("kafkajs.js")],
        missing=NODE.missing,
        lacks=lacking("new groups"),
        fails=dict.fromkeys(SENT_AGAIN, ANOTHER_PARTITION),
        stops={
            "leader-moved": DEAD_COORDINATOR,
            "stale-metadata": DEAD_COORDINATOR,
            "rebalance": "a commit that meets a rebalance may end the consumer",
        },
        refused_token="KafkaJSConnectionClosedError",
    ),
    Client(
        "rdkafka",
        "Rust",
        version=lambda: f"{rust_version('rdkafka')} (librdkafka {rust_version('rdkafka-sys').partition('+')[2]})",
        command=lambda: [RUST.program("debug/rdkafka")],
        missing=RUST.missing,
        is_librdkafka=True,
    ),
    Client(
        "rskafka",
        "Rust",
        version=lambda: rust_version("rskafka"),
        command=lambda: [RUST.program("debug/rskafka")],
        missing=RUST.missing,
        lacks=lacking(
            "acks", "idempotent", "committed", "rebalance", "resume", "new groups", "transactions", "exactly once"
        ),
        fails={**dict.fromkeys(SENT_AGAIN, NOT_IDEMPOTENT), "throttled": THROTTLED_TWICE},
        logs_in_again=False,
        refused_token="callback error",
    ),
    kafkas_java_client("Java client", KAFKA),
    kafkas_java_client("Java client, newest", NEWEST_CLIENT),
    Client(
        "Kafka's command line tools",
        "command line",
        version=lambda: KAFKA.version("kafka-tools"),
        command=lambda: [sys.executable, "-m", "tests.clients.programs.kafka_tools.program"],
        missing=KAFKA.missing,
        lacks=lacking("transactions", "exactly once"),
    ),
]
