"""Reads a scenario: a YAML file of faults and their times, for `ottla fault run`. Errors name file and line.

    faults:
      - isolate leader of t-0 from zookeeper for 10s at 20s
      - {do: cut broker 2, from: peers, one-way: in, for: 5s, at: 40s}

Both forms say the same words (`words.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from tools.faults.script import ScriptedFault, parse, parse_all
from tools.faults.words import OPTIONS, FaultError
from tools.yaml_nodes import NotYaml, nodes_of

KEYS = ("do", *OPTIONS)
BYTES_MAX = 1 << 20


def read_scenario(path: Path) -> list[ScriptedFault]:
    """In the order of their times. Raises FaultError with file and line."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise FaultError(f"{path}: a scenario has at most {BYTES_MAX} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise FaultError(f"{path} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise FaultError(f"{path} is not UTF-8") from None
    return parse_scenario(text, str(path))


def parse_scenario(text: str, where: str) -> list[ScriptedFault]:
    """Raises FaultError; `where` is the file's name in it."""
    try:
        root = nodes_of(text, where)
    except NotYaml as problem:
        raise FaultError(str(problem)) from None
    lines = []
    for node in _faults(root, where):
        lines.append(_said(node, where))
        try:
            parse(lines[-1])
        except FaultError as problem:
            raise _error(node, where, str(problem)) from None
    try:
        return parse_all(lines)
    except FaultError as problem:
        raise FaultError(f"{where}: {problem}") from None


def _faults(root: yaml.Node | None, where: str) -> list[yaml.Node]:
    if root is None:
        raise FaultError(f"{where} is empty: expected `faults:` and a list")
    if not isinstance(root, yaml.MappingNode):
        raise _error(root, where, "expected `faults:` and a list")
    found: list[yaml.Node] | None = None
    for key, value in root.value:
        if key.value != "faults":
            raise _error(key, where, f"unknown key {key.value!r}; a scenario has only `faults`")
        if not isinstance(value, yaml.SequenceNode):
            raise _error(value, where, "`faults` is a list")
        found = value.value
    if not found:
        raise _error(root, where, "a scenario without a fault")
    return found


def _said(node: yaml.Node, where: str) -> str:
    """The fault in one line of words."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if not isinstance(node, yaml.MappingNode):
        raise _error(node, where, "a fault is a line of words, or a mapping with `do` and `at`")
    given = dict(_pairs(node, where))
    if "do" not in given:
        raise _error(node, where, "a fault without `do`")
    if "at" not in given:
        raise _error(node, where, "a fault without `at`")
    words = [given.pop("do")]
    for key in OPTIONS:
        if key in given:
            words += [key] if given[key] == "true" and key in ("reset", "half") else [key, given[key]]
    return " ".join(words)


def _pairs(node: yaml.MappingNode, where: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for key, value in node.value:
        if key.value not in KEYS:
            raise _error(key, where, f"unknown key {key.value!r}; the keys are {', '.join(KEYS)}")
        if key.value in seen:
            raise _error(key, where, f"{key.value} twice")
        seen.add(key.value)
        if isinstance(value, yaml.SequenceNode) and key.value == "from":
            yield key.value, ",".join(str(each.value) for each in value.value)
        elif isinstance(value, yaml.ScalarNode):
            yield key.value, str(value.value)
        else:
            raise _error(value, where, f"{key.value}: expected a text")


def _error(node: yaml.Node, where: str, reason: str) -> FaultError:
    return FaultError(f"{where}, line {node.start_mark.line + 1}: {reason}")
