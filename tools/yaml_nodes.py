"""YAML files as nodes, which know their lines: for errors that name file and line."""

from __future__ import annotations

import yaml


class NotYaml(ValueError):
    """The text is not YAML; the message says where and why."""


def nodes_of(text: str, where: str) -> yaml.Node | None:
    """The root; None for an empty text. `where` is the file's name in errors. Raises NotYaml."""
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as problem:
        raise NotYaml(f"{where}{not_yaml(problem)}") from None


def not_yaml(problem: yaml.YAMLError | RecursionError) -> str:
    """`, line 2, column 1: not YAML: expected ...`: where in a file, and why."""
    if not isinstance(problem, yaml.MarkedYAMLError):
        return f": not YAML: {str(problem).splitlines()[0]}"
    mark = problem.problem_mark
    line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"{line}: not YAML: {problem.problem or problem.context}"
