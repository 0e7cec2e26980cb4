"""Delegation tokens and tokens of OAUTHBEARER beside a real Kafka: either knows the other's, and both refuse the same (CLI-5, KIP-48)."""

from __future__ import annotations

import re
import signal
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from protocol.bearer import CONFIRMATION, first_message, unsecured_token
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.scram import ScramClient
from tests.support.invariants import eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.swappable_broker import SwappableBroker
from tests.support.wire import Wire
from tools.cluster.ports import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

MODULES = "org.apache.kafka.common.security"
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "listener.name.clients.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    "listener.name.clients.plain.sasl.jaas.config": f'{MODULES}.plain.PlainLoginModule required user_alice="alice-secret";',
    "listener.name.clients.scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
    "listener.name.clients.oauthbearer.sasl.jaas.config": (
        f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="x" '
        'unsecuredValidatorRequiredScope="a b";'
    ),
    "delegation.token.secret.key": "the-secret-of-tokens",
}
OWNER = {"owner_principal_type": None, "owner_principal_name": None}
Answer = tuple[int, str, bytes]


class Peer(SwappableBroker):
    """With a further listener, whose clients log in; whether the broker serves is asked at the first one."""

    @property
    def bootstrap_servers(self) -> str:
        given = (self.cluster.broker_directory(1) / "server.properties").read_text()
        return re.findall(r"^listeners=.*PLAINTEXT://(127\.0\.0\.1:\d+)", given, re.MULTILINE)[0]


def log_in(port: int, mechanism: str, *tokens: bytes) -> tuple[Wire, list[Answer]]:
    """The connection, and (error, message, token) of each answer."""
    wire = Wire(port)
    wire.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    answers = []
    for token in tokens:
        answer = wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token})
        answers.append((int(answer.error_code), answer.error_message or "", bytes(answer.auth_bytes)))
    return wire, answers


def as_alice(port: int) -> Wire:
    wire, answers = log_in(port, "PLAIN", b"\0alice\0alice-secret")
    assert answers[0][0] == 0
    return wire


def logs_in_by(port: int, token: Any) -> bool:
    scram = ScramClient("SCRAM-SHA-256", token.token_id, b64encode(token.hmac).decode(), "a-nonce", tokenauth=True)
    wire, answers = log_in(port, "SCRAM-SHA-256", scram.first())
    with wire:
        last = wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": scram.final(answers[0][2])})
        if last.error_code:
            return False
        refused = wire.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, {**OWNER, "renewers": (), "max_lifetime": -1})
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert refused.principal_name == "alice"
        return True


def described(port: int) -> dict[str, Any]:
    with as_alice(port) as wire:
        return {row.token_id: row for row in wire.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None}).tokens}


def made(port: int) -> Any:
    renewers = [{"principal_type": "User", "principal_name": "CN=b,o~b"}]
    with as_alice(port) as wire:
        created = wire.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, {**OWNER, "renewers": renewers, "max_lifetime": -1})
        assert created.error_code == ErrorCode.NONE
        return created


def bearers(port: int) -> list[list[Answer]]:
    """What the broker answers to good and to wrong tokens."""
    scopes = {"unsecuredLoginListClaim_scope": "|a|b"}
    claims = {**scopes, "unsecuredLoginStringClaim_sub": "alice"}
    now = time.time()
    good = unsecured_token(claims, now)
    narrow = unsecured_token({**claims, "unsecuredLoginListClaim_scope": "|a"}, now)
    expired = unsecured_token(claims, now - 7200)
    nobody = unsecured_token(
        {**scopes, "unsecuredLoginPrincipalClaimName": "x", "unsecuredLoginStringClaim_x": "x"}, now
    )
    found = []
    for token in (good, narrow, expired, nobody, good + "c2ln", "a.b."):
        message = first_message(token)
        wire, answers = log_in(port, "OAUTHBEARER", message)
        with wire:
            if answers[0][2]:
                failed = wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": CONFIRMATION})
                answers.append((int(failed.error_code), failed.error_message, bytes(failed.auth_bytes)))
        found.append(answers)
    for message in (b"rubbish", b"n,,\x01\x01", b"n,a=bob,\x01auth=Bearer " + good.encode() + b"\x01\x01"):
        wire, answers = log_in(port, "OAUTHBEARER", message)
        wire.socket.close()
        found.append([(answers[0][0], "", answers[0][2])])
    return found


def test_either_knows_the_tokens_of_the_other(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with Peer(tmp_path / "peer", kafka_tools, SETTINGS) as peer:
        file = peer.cluster.broker_directory(1) / "server.properties"
        (listeners,) = [line for line in file.read_text().splitlines() if line.startswith("listeners=")]
        with file.open("a") as properties:
            properties.write(f"{listeners},CLIENTS://127.0.0.1:{port}\n")
        peer.start("ottla")
        ours, our_bearers = made(port), bearers(port)
        peer.stop(signal.SIGTERM)
        peer.start("Kafka")
        row = described(port)[ours.token_id]
        assert (row.hmac, row.expiry_timestamp) == (ours.hmac, _ms(ours.expiry_timestamp))
        assert [one.principal_name for one in row.renewers] == ["CN=b,o~b"]
        assert logs_in_by(port, ours)
        kafkas, kafkas_bearers = made(port), bearers(port)
        peer.stop(signal.SIGTERM)
        peer.start("ottla")
        eventually(lambda: set(described(port)) == {ours.token_id, kafkas.token_id}, "it reads both", 10)
        assert described(port)[kafkas.token_id].hmac == kafkas.hmac
        assert logs_in_by(port, kafkas)
    assert our_bearers == kafkas_bearers


def _ms(moment: Any) -> int:
    return moment if isinstance(moment, int) else round(moment.timestamp() * 1000)
