"""docs/OPERATING.md lists the limits as they are in the code: each name exists, and has that default."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.settings.config import INT_MAX, BrokerConfig, attribute, settings_of
from tests.unit.docs.pages import section

PAGE = Path(__file__).parents[3] / "docs" / "OPERATING.md"
ROW = re.compile(r"\| `([^`]+)` \| ([^|]+) \|")
UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
NO_LIMITS = {
    "connections.max.reauth.ms",
    "controlled.shutdown.max.retries",
    "delegation.token.max.lifetime.ms",
    "log.cleaner.max.compaction.lag.ms",
    "log.index.size.max.bytes",
    "log.message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms",
    "log.message.timestamp.difference.max.ms",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "replica.fetch.wait.max.ms",
    "replica.lag.time.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
}
"""Settings with `max` in their names that bound nothing that a client could fill."""


def rows() -> Iterator[tuple[str, str]]:
    text = PAGE.read_text(encoding="utf-8")
    for heading in ("Limits", "Appendix: limits without a setting"):
        for line in section(text, heading).splitlines():
            found = ROW.match(line)
            if found is not None:
                yield found[1], found[2].strip()


def value_of(name: str) -> float | str:
    if name in settings_of(BrokerConfig):
        value = getattr(BrokerConfig(), attribute(name))
    else:
        module, _, constant = name.rpartition(".")
        value = getattr(importlib.import_module(module), constant)
    assert isinstance(value, int | float | str)
    return value


@pytest.mark.parametrize(("name", "default"), list(rows()))
def test_a_row_is_true(name: str, default: str) -> None:
    value = value_of(name)
    if default == "none":
        assert value == "" or value == -1 or float(value) >= INT_MAX
        return
    number, _, unit = default.partition(" ")
    assert float(number.replace(",", "")) * UNITS.get(unit, 1) == value
    assert unit in ("", "ms", "s", *UNITS)


def test_no_setting_is_missing_and_none_is_there_twice() -> None:
    names = [name for name, _ in rows()]
    assert len(names) == len(set(names)) > 60
    limits = {key for key in settings_of(BrokerConfig) if "max" in key.split(".")} - NO_LIMITS
    assert limits <= set(names)
