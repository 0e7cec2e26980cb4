"""When a broker takes the compiled form of its hot modules. `make compile` itself is not tested here: it takes a minute."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from broker import compiled
from broker.compiled import MODULES, digest, form, source_of

TAG = sys.implementation.cache_tag


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(compiled, "MANIFEST", tmp_path / "manifest.json")
    return {"python": TAG, "mypyc": "2.4", "sources": {module: digest(source_of(module)) for module in MODULES}}


def written(manifest: dict[str, Any]) -> None:
    compiled.MANIFEST.write_text(json.dumps(manifest))


def test_the_form_of_these_sources_is_taken(manifest: dict[str, Any]) -> None:
    assert form({}) == (False, "plain Python")
    written(manifest)
    assert form({}) == (True, f"{len(MODULES)} modules compiled by mypyc 2.4")
    assert form({"OTTLA_COMPILED": "0"}) == (False, "plain Python, because OTTLA_COMPILED=0")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"python": "cpython-39"}, "the compiled form is for cpython-39: run `make compile` again"),
        ({"sources": {"protocol.types": "0"}}, "protocol.types has changed since it was compiled"),
        ({"sources": {"protocol.gone": "0"}}, "protocol.gone has changed since it was compiled"),
    ],
)
def test_any_other_form_is_not_taken(manifest: dict[str, Any], change: dict[str, Any], reason: str) -> None:
    written(manifest | change)
    is_compiled, words = form({})
    assert not is_compiled
    assert reason in words


def test_a_damaged_manifest_is_named(manifest: dict[str, Any]) -> None:
    compiled.MANIFEST.write_text("{")
    is_compiled, words = form({})
    assert not is_compiled
    assert str(compiled.MANIFEST) in words


def test_no_class_of_the_broker_inherits_from_a_compiled_one() -> None:
    """An interpreted class cannot: Python would raise TypeError when the broker starts."""
    broker = Path(compiled.__file__).parent.parent
    for source in broker.rglob("*.py"):
        name = ".".join(source.relative_to(broker.parent).with_suffix("").parts).removesuffix(".__init__")
        if name in MODULES or name.endswith("__main__"):
            continue
        for _, found in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if found.__module__ == name:
                inherited = {base.__module__ for base in found.__mro__[1:]}
                assert not inherited & set(MODULES), (
                    f"{name}.{found.__name__}: move its base class to a module of its own"
                )
