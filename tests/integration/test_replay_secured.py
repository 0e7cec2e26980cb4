"""`ottla replay run --command-config` against a real Kafka with TLS and SASL (RPL-2)."""

from __future__ import annotations

import asyncio
import json
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import uvloop
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from protocol.kafka.api_keys import ApiKey
from tests.support.certificates import KEY_PASSWORD, Certificates
from tests.support.cli import COMMAND, ottla
from tests.support.real_kafka import HOST, running_kafka, skip_without_kafka
from tests.support.small_traces import fetch, produce, written
from tools.cluster.java import find_java
from tools.cluster.ports import free_ports
from tools.replay.run.plan import PARENT_PIPE_VARIABLE, OutputDirectory
from tools.replay.run.spark_process import job_environment, write_java_home
from tools.wire import frames
from tools.wire.client import Client
from tools.wire.cluster_view import METADATA_VERSION, ClusterView
from tools.wire.security import Security

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.timeout(600)]

USER, PASSWORD = "alice", "not-for-the-disk"
SESSION_S = 10
"""After this time, the SASL_SSL listener ends a connection that has not logged in again."""
TOPIC = "secured"


@dataclass(frozen=True, slots=True)
class Secured:
    """A broker with a listener of each security protocol; `ports` has the names in lower case."""

    certificates: Certificates
    plaintext: str
    ports: dict[str, int]

    def server(self, listener: str, host: str = HOST) -> str:
        return f"{host}:{self.ports[listener]}"

    def trusted(self) -> str:
        return f"ssl.truststore.type=PEM\nssl.truststore.location={self.certificates.authority}\n"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    skip_without_kafka()
    directory = tmp_path_factory.mktemp("secured")
    certificates = Certificates(directory)
    names = ("ssl", "sasl_plaintext", "sasl_ssl")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    module = "org.apache.kafka.common.security"
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        ),
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "offsets.topic.num.partitions": "1",
    }
    for mechanism in ("scram-sha-256", "scram-sha-512"):
        settings[f"listener.name.sasl_ssl.{mechanism}.sasl.jaas.config"] = f"{module}.scram.ScramLoginModule required;"
        settings[f"listener.name.sasl_ssl.{mechanism}.connections.max.reauth.ms"] = str(SESSION_S * 1000)
    listeners = {name.upper(): [port] for name, port in ports.items()}
    with running_kafka(directory, brokers=1, overrides=settings, listeners=listeners) as cli:
        admin = AdminClient({"bootstrap.servers": cli.bootstrap_servers})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for future in admin.alter_user_scram_credentials([change]).values():
                future.result(30)
        yield Secured(certificates, cli.bootstrap_servers, ports)


def write_trace(path: Path, topic: str) -> Path:
    """A producer and a consumer, 20 times a second for 3 s."""
    rows = [
        row
        for at in range(0, 3000, 50)
        for row in (produce(at, 2 * at, topic=topic), fetch(at, 2 * at + 1, topic=topic, max_wait_ms=100))
    ]
    return written(path, rows, **{topic: 2})


def command_config(directory: Path, text: str) -> Path:
    file = directory / "client.properties"
    file.write_text(text)
    return file


def scram(secured: Secured, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> str:
    return (
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n{secured.trusted()}"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        f'    username="{USER}" \\\n    password="{password}";\n'
    )


def plain(password: str = PASSWORD) -> str:
    return f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username={USER}\nsasl.password={password}\n"


def check_nothing_is_lost(out: Path, operations: int | None = None) -> None:
    """`operations`: of a trace of `write_trace`, half of which are batches of a record."""
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(out / "operations").to_pylist()
    assert {row["error"] for row in rows} == {None}
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["acknowledged"] == verdict["found"] > 0
    if operations is not None:
        assert (len(rows), verdict["found"]) == (operations, operations // 2)
    assert [verdict[name] for name in ("lost", "duplicated", "reordered", "corrupted", "unseen")] == [0] * 5


def check_no_secret(directory: Path, *secrets: str) -> None:
    """No file has a secret, and the one that had them is gone."""
    assert not OutputDirectory(directory).access.exists()
    for file in filter(Path.is_file, directory.rglob("*")):
        for secret in secrets:
            assert secret.encode() not in file.read_bytes(), file


def test_the_demo_by_scram_over_tls(secured: Secured, tmp_path: Path) -> None:
    """Its replay and its consumer group use the same properties, for longer than a login lasts."""
    out = tmp_path / "out"
    speed = str(86_400 // (2 * SESSION_S))
    done = subprocess.run(
        [*COMMAND, "demo", "--days", "1", "--speed", speed, "--brokers", "1", "--out", str(out), "--bootstrap-server",
         secured.server("sasl_ssl"), "--command-config", str(command_config(tmp_path, scram(secured)))],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (group,) = json.loads((out / "summary.json").read_text())["groups"]
    assert (group["members"], group["error"]) == (6, "")
    assert group["commits"]
    check_nothing_is_lost(out)
    check_no_secret(out, PASSWORD)
    assert PASSWORD not in done.stdout + done.stderr


def test_plain_without_tls(secured: Secured) -> None:
    async def log_in() -> None:
        view = ClusterView(
            Client("test", Security("SASL_PLAINTEXT", "PLAIN", USER, PASSWORD)),
            [(HOST, secured.ports["sasl_plaintext"])],
            [],
        )
        await view.start()
        (await view.connect(0, lambda _: None)).close()

    uvloop.run(log_in())


def test_a_connection_logs_in_again_between_two_requests(secured: Secured) -> None:
    """It outlives its first login, with a request in flight at any time, and each request gets its answer."""
    trusted = secured.certificates.authority.read_text()
    security = Security("SASL_SSL", "SCRAM-SHA-256", USER, PASSWORD, trusted=trusted)
    body = {"topics": [], "allow_auto_topic_creation": False}
    frame = frames.request_frame(ApiKey.METADATA, METADATA_VERSION, "test", body)

    async def ask_until_the_first_login_is_over() -> None:
        view = ClusterView(Client("test", security), [(HOST, secured.ports["sasl_ssl"])], [])
        await view.start()
        connection = await view.connect(0, lambda _: None)
        began = time.monotonic()
        while time.monotonic() < began + 1.5 * SESSION_S:
            await asyncio.gather(*(connection.ask(frame, 30) for _ in range(3)))
        connection.close()

    uvloop.run(ask_until_the_first_login_is_over())


@pytest.mark.release
def test_a_submitted_job_takes_the_clients_certificate(secured: Secured, tmp_path: Path) -> None:
    """`submit-command` leaves a file that only its owner can read, and the job removes it."""
    out, topic = tmp_path / "out", "by-certificate"
    trace = write_trace(tmp_path / "trace", topic)
    key = secured.certificates.client
    config = command_config(
        tmp_path,
        f"security.protocol=SSL\n{secured.trusted()}ssl.keystore.type=PEM\nssl.keystore.location={key}\n"
        f"ssl.key.password={KEY_PASSWORD}\n",
    )
    options = ["--bootstrap-server", secured.server("ssl"), "--create-topics", "--command-config", str(config)]
    said = ottla(shlex.join(["replay", "submit-command", str(trace), *options, "--out", str(out)]))
    assert said.exit_code == 0, said.output
    output = OutputDirectory(out)
    assert stat.S_IMODE(output.access.stat().st_mode) == 0o600
    assert KEY_PASSWORD in output.access.read_text()
    assert KEY_PASSWORD not in said.output + output.plan.read_text()
    done = subprocess.run(
        [sys.executable, "-m", "tools.replay.run.job", str(out)], env=environment_of_a_submitted_job(tmp_path),
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    check_nothing_is_lost(out, 120)
    check_no_secret(out, KEY_PASSWORD, "PRIVATE KEY")


def environment_of_a_submitted_job(directory: Path) -> dict[str, str]:
    """Nobody holds a pipe to it, as `ottla replay run` does to its job."""
    java_home = write_java_home(directory / "java-home", Path(find_java()))
    environment = job_environment(java_home, directory)
    del environment[PARENT_PIPE_VARIABLE]
    return environment


def test_what_is_refused_is_one_line_and_leaves_nothing(secured: Secured, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace", TOPIC)
    stranger = f"ssl.truststore.location={secured.certificates.stranger}\n"
    tls = f"security.protocol=SSL\n{secured.trusted()}"
    for listener, config, says in (
        ("sasl_ssl", scram(secured, password="wrong"), "refuses user 'alice' with SCRAM-SHA-512"),
        ("sasl_ssl", scram(secured, "SCRAM-SHA-256", "wrong"), "check sasl.username and sasl.password"),
        ("sasl_plaintext", plain("wrong"), "refuses user 'alice' with PLAIN"),
        (
            "sasl_plaintext",
            plain().replace("PLAIN\n", "SCRAM-SHA-256\n"),
            "does not offer SCRAM-SHA-256; it offers PLAIN",
        ),
        ("ssl", f"security.protocol=SSL\n{stranger}", "its certificate is refused: "),
        ("ssl", tls, "if it wants a client's certificate, set ssl.keystore.location"),
        ("ssl", "", "if this port is for TLS or SASL, use --command-config"),
        ("sasl_plaintext", "", "if this port is for TLS or SASL, use --command-config"),
        ("sasl_plaintext", tls, "check that this port is for TLS"),
        ("plaintext", plain(), "takes no SASL at this port"),
    ):
        server = secured.plaintext if listener == "plaintext" else secured.server(listener)
        file = command_config(tmp_path, config)
        for create in ([], ["--create-topics"]):
            options = ["--bootstrap-server", server, "--command-config", str(file), "--out", str(tmp_path / "out")]
            done = ottla(shlex.join(["replay", "run", str(trace), *options, *create]))
            assert done.exit_code == 1, done.output
            assert says in done.stderr, (listener, config, done.stderr)
            assert done.stderr.count("\n") == 1, done.stderr
            assert server in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_host_name_is_checked_unless_told_otherwise(secured: Secured, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace", TOPIC)
    for extra, says in (
        ("", "its certificate is refused: Hostname mismatch"),
        ("ssl.endpoint.identification.algorithm=\n", f"topic '{TOPIC}' does not exist"),
    ):
        file = command_config(tmp_path, scram(secured) + extra)
        options = ["--bootstrap-server", secured.server("sasl_ssl", "localhost"), "--command-config", str(file)]
        done = ottla(shlex.join(["replay", "run", str(trace), *options, "--out", str(tmp_path / "out")]))
        assert done.exit_code == 1
        assert says in done.stderr
