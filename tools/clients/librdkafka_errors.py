"""Errors of confluent-kafka, in one line."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

NOBODY_ANSWERS = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN})


def error_code(problem: KafkaException) -> int:
    return int(problem.args[0].code())


def error_text(problem: Exception) -> str:
    """The text of librdkafka's error in one line."""
    error = problem.args[0]
    text = error.str() if isinstance(error, KafkaError) else str(error)
    return " ".join(text.split())
