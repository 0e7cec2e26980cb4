"""TLS of a listener as dynamic settings beside a real Kafka: both take and refuse the same, and read each other's passwords (KIP-226)."""

from __future__ import annotations

import re
import signal
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.support.certificates import Certificates
from tests.support.invariants import eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.swappable_broker import SwappableBroker
from tests.support.wire import Wire
from tools.cluster.ports import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

EXTERNAL, INTERNAL = "listener.name.external.ssl.", "listener.name.internal.ssl."
STORE_PASSWORD, OTHER_PASSWORD = "opens-the-store", "opens-the-other"
NEW_ENCODER = """
password.encoder.old.secret=the first secret
password.encoder.cipher.algorithm=AES/GCM/NoPadding
password.encoder.key.length=256
"""
Change = Mapping[str, str | None]


class Peer(SwappableBroker):
    """With two listeners of TLS, INTERNAL among brokers and EXTERNAL; whether the broker serves is asked at the one in the clear."""

    ports: tuple[int, ...] = ()

    def add_listeners(self, made: Certificates) -> None:
        self.ports = tuple(free_ports(2))
        more = f"EXTERNAL://127.0.0.1:{self.ports[0]},INTERNAL://127.0.0.1:{self.ports[1]}"
        stores = "".join(
            f"{prefix}keystore.type=PEM\n{prefix}keystore.location={made.broker}\n" for prefix in (EXTERNAL, INTERNAL)
        )
        trusted = f"{INTERNAL}truststore.type=PEM\n{INTERNAL}truststore.location={made.authority}\n"
        rest = f"inter.broker.listener.name=INTERNAL\n{stores}{trusted}"
        self.rewrite(lambda text: re.sub(r"(?m)^(listeners=.*)$", rf"\1,{more}", text) + rest)

    def rewrite(self, change: Callable[[str], str]) -> None:
        """Changes `server.properties`."""
        file = self.cluster.broker_directory(1) / "server.properties"
        file.write_text(change(file.read_text()))

    @property
    def clear(self) -> int:
        return int(self.bootstrap_servers.rpartition(":")[2])

    @property
    def bootstrap_servers(self) -> str:
        given = (self.cluster.broker_directory(1) / "server.properties").read_text()
        return re.findall(r"^listeners=.*PLAINTEXT://(127\.0\.0\.1:\d+)", given, re.MULTILINE)[0]

    def alter(self, change: Change, name: str = "1") -> ErrorCode:
        rows = [{"name": key, "config_operation": int(text is None), "value": text} for key, text in change.items()]
        body = {"resources": [{"resource_type": 4, "resource_name": name, "configs": rows}], "validate_only": False}
        with Wire(self.clear) as wire:
            (answer,) = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
        return ErrorCode(answer.error_code)

    def described(self) -> dict[str, tuple[str | None, int, bool, bool, int, list[tuple[str, str | None, int]]]]:
        """The dynamic settings of TLS, and those of both stores in the file."""
        body = {
            "resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}],
            "include_synonyms": True,
            "include_documentation": False,
        }
        with Wire(self.clear) as wire:
            (answer,) = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, body).results
        return {
            row.name: (
                row.value, int(row.config_source), row.read_only, row.is_sensitive, int(row.config_type),
                [(each.name, each.value, int(each.source)) for each in row.synonyms],
            )
            for row in answer.configs
            if re.match(r"listener\.name\.\w+\.ssl\.|password\.encoder\.|ssl\.allow\.", row.name)
        }  # fmt: skip

    def shows(self, certificate: Path) -> bool:
        """Whether a new connection to EXTERNAL sees this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.ports[0]), timeout=20) as plain,
            context.wrap_socket(plain) as encrypted,
        ):
            found = encrypted.getpeercert(binary_form=True)
        return found == ssl.PEM_cert_to_DER_cert(certificate.with_suffix(".crt").read_text())


def changes(made: Certificates) -> list[tuple[str, Change]]:
    """What both are asked, in this order: (the broker, or all; the change)."""
    another = made.next_of_broker("another", "/CN=another")
    nameless = made.next_of_broker("nameless", names="DNS:kafka1")
    wider = made.next_of_broker("wider", names="IP:127.0.0.1,DNS:kafka1")
    store = {
        f"{EXTERNAL}keystore.type": "PKCS12",
        f"{EXTERNAL}keystore.location": str(made.pkcs12("wider", STORE_PASSWORD)),
    }
    return [
        ("1", {"ssl.keystore.location": str(wider)}),
        ("", {"ssl.keystore.location": str(wider)}),
        ("", {f"{EXTERNAL}keystore.location": str(wider)}),
        ("1", {"ssl.principal.mapping.rules": "DEFAULT"}),
        ("1", {"ssl.allow.dn.changes": "true"}),
        ("1", {f"{EXTERNAL}client.auth": "maybe"}),
        ("1", {f"{EXTERNAL}keystore.location": "/no/such"}),
        ("1", {f"{EXTERNAL}keystore.location": str(made.authority)}),
        ("1", {f"{EXTERNAL}keystore.location": str(another)}),
        ("1", {f"{EXTERNAL}keystore.location": str(nameless)}),
        ("1", {f"{EXTERNAL}keystore.location": str(made.client), f"{EXTERNAL}key.password": "wrong"}),
        ("1", {**store, f"{EXTERNAL}keystore.password": "wrong"}),
        ("1", {f"{EXTERNAL}keystore.type": "nonsense"}),
        ("1", {f"{EXTERNAL}truststore.type": "PEM", f"{EXTERNAL}truststore.location": str(made.authority)}),
        ("1", {f"{INTERNAL}truststore.location": str(made.stranger)}),
        ("1", {f"{INTERNAL}truststore.location": "/no/such"}),
        ("1", {f"{INTERNAL}keystore.location": str(wider)}),
        ("1", {"listener.name.plaintext.ssl.keystore.location": "/no/such"}),
        ("1", {"listener.name.other.ssl.keystore.location": "/no/such"}),
        ("1", {**store, f"{EXTERNAL}keystore.password": STORE_PASSWORD, f"{EXTERNAL}key.password": STORE_PASSWORD}),
        ("1", {f"{EXTERNAL}keystore.location": str(made.broker)}),
    ]  # fmt: skip


def test_both_take_the_same_and_read_each_others_passwords(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    (directory := tmp_path / "made").mkdir()
    made = Certificates(directory)
    asked = changes(made)
    wider = directory / "wider.pem"
    by_kafka = made.next_of_broker("by-kafka", names="IP:127.0.0.1,DNS:kafka1")
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,EXTERNAL:SSL,INTERNAL:SSL",
        "password.encoder.secret": "the first secret",
    }
    with Peer(tmp_path / "peer", kafka_tools, settings) as peer:
        peer.add_listeners(made)
        codes, described = {}, {}
        for kind in ("Kafka", "ottla"):
            peer.start(kind)
            codes[kind] = [peer.alter(change, name) for name, change in asked]
            described[kind] = peer.described()
            assert peer.shows(wider)
            peer.stop(signal.SIGTERM)
            if kind == "Kafka":
                peer.zk.client.delete("/config/brokers/1")
        rows = list(zip(asked, codes["ottla"], codes["Kafka"], strict=True))
        assert [row for row in rows if row[1] is not row[2]] == []
        assert {code.name for code in codes["Kafka"]} == {"NONE", "INVALID_REQUEST"}
        assert described["ottla"] == described["Kafka"]

        peer.start("Kafka")
        assert peer.shows(wider), "by the password that ottla has encrypted"
        change = {
            f"{EXTERNAL}keystore.location": str(made.pkcs12("by-kafka", OTHER_PASSWORD)),
            f"{EXTERNAL}keystore.password": OTHER_PASSWORD,
            f"{EXTERNAL}key.password": OTHER_PASSWORD,
        }
        assert peer.alter(change) is ErrorCode.NONE
        eventually(lambda: peer.shows(by_kafka), "Kafka takes it", 20)
        peer.stop(signal.SIGTERM)

        peer.rewrite(lambda text: text.replace("the first secret", "the second secret") + NEW_ENCODER)
        peer.start("ottla")
        assert peer.shows(by_kafka), "by the password that Kafka has encrypted, and by the old secret"
        peer.stop(signal.SIGTERM)
        # With an old secret, Kafka's last broker does not start: it needs a controller to write by.
        peer.rewrite(lambda text: text.replace("password.encoder.old.secret=the first secret\n", ""))
        peer.start("Kafka")
        assert peer.shows(by_kafka), "by the password that ottla has encrypted anew"
        peer.stop(signal.SIGTERM)
