"""`User`: who a client of a secured cluster is, and the settings of its client library."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class User:
    """The methods return new settings each time, with the bootstrap addresses, for a login or, with `certificate`, for mutual TLS.

    `mechanism` is how the user logs in: SCRAM-SHA-512 unless told otherwise, SCRAM-SHA-256, or PLAIN, which only the users that every
    secured cluster has can use.
    """

    name: str
    password: str = field(repr=False)
    by_login: Mapping[str, Mapping[str, str]] = field(repr=False)
    by_certificate: Mapping[str, Mapping[str, str]] = field(repr=False)

    def confluent_kafka(self, mechanism: str | None = None, *, certificate: bool = False) -> dict[str, Any]:
        """`Producer(user.confluent_kafka())`; also for any other client on librdkafka."""
        settings = self._settings("confluent-kafka", certificate)
        return {**settings, **({"sasl.mechanism": mechanism} if mechanism else {})}

    def kafka_python(self, mechanism: str | None = None, *, certificate: bool = False) -> dict[str, Any]:
        """`KafkaProducer(**user.kafka_python())`."""
        settings = self._settings("kafka-python", certificate)
        return {**settings, **({"sasl_mechanism": mechanism} if mechanism else {})}

    def aiokafka(self, mechanism: str | None = None, *, certificate: bool = False) -> dict[str, Any]:
        """`AIOKafkaProducer(**user.aiokafka())`."""
        settings = self._settings("aiokafka", certificate)
        context = ssl.create_default_context(cafile=settings.pop("ssl_cafile"))
        if certificate:
            context.load_cert_chain(settings.pop("ssl_certfile"), settings.pop("ssl_keyfile"))
        return {**settings, "ssl_context": context, **({"sasl_mechanism": mechanism} if mechanism else {})}

    def _settings(self, library: str, certificate: bool) -> dict[str, Any]:
        return dict((self.by_certificate if certificate else self.by_login)[library])
