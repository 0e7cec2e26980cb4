"""Takes one rule out of the real code, by its text: a test of that rule must fail then."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import pytest

_sources: WeakKeyDictionary[FunctionType, str] = WeakKeyDictionary()
"""Of functions that have lost a rule already, and are in no file."""


def take_out(patch: pytest.MonkeyPatch, owner: Any, name: str, rule: str, instead: str) -> None:
    """The function `owner.name` with `instead` in place of the text `rule`, until `patch` is undone.

    Fails when the text is not there exactly once: whoever changed the rule looks at its test too.
    """
    function: FunctionType = inspect.getattr_static(owner, name)
    source = _sources.get(function) or textwrap.dedent(inspect.getsource(function))
    assert source.count(rule) == 1, f"{rule!r} is {source.count(rule)} times in {function.__qualname__}"
    source = source.replace(rule, instead)
    code = compile(
        source,
        f"<{function.__qualname__} without a rule>",
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    changed: dict[str, Any] = {}
    exec(code, function.__globals__, changed)
    _sources[changed[name]] = source
    patch.setattr(owner, name, changed[name])
