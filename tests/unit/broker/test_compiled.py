"""When a broker takes the compiled form of its hot modules. tests/integration/test_compiled.py has brokers that run it."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import sys
from pathlib import Path

import pytest

from broker import compiled
from broker.compiled import MODULES, SUFFIX, Manifest, build, digest, form, source_of

SHARED_FILE = f"group__mypyc{SUFFIX}"


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """That of a compiled form whose library is not one, and which is whole all the same."""
    monkeypatch.setattr(compiled, "LIBRARY", tmp_path)
    monkeypatch.setattr(compiled, "MANIFEST", tmp_path / "manifest.json")
    monkeypatch.delenv(compiled.SWITCH, raising=False)
    library = tmp_path / "form" / SHARED_FILE
    library.parent.mkdir()
    library.write_bytes(b"no library")
    sources = {module: digest(source_of(module)) for module in MODULES}
    return Manifest(SUFFIX, "2.4", sources, "form", {SHARED_FILE: digest(library)})


def written(manifest: Manifest) -> None:
    compiled.MANIFEST.write_text(json.dumps(dataclasses.asdict(manifest)))


def test_the_form_of_these_sources_is_taken(manifest: Manifest) -> None:
    assert form({}) == (False, "plain Python")
    written(manifest)
    assert form({}) == (True, f"{len(MODULES)} modules compiled by mypyc 2.4")
    assert form({"OTTLA_COMPILED": "0"}) == (False, "plain Python, because OTTLA_COMPILED=0")


def test_a_form_of_another_python_is_not_taken(manifest: Manifest) -> None:
    written(dataclasses.replace(manifest, suffix=".cpython-39.so"))
    assert form({}) == (
        False,
        "plain Python, because the compiled form is for .cpython-39.so: run `make setup` again",
    )


def test_changed_sources_are_named(manifest: Manifest) -> None:
    written(dataclasses.replace(manifest, sources=manifest.sources | {"protocol.types": "0"}))
    assert form({}) == (
        False,
        "plain Python, because protocol.types has changed since `make setup` compiled the modules",
    )
    written(dataclasses.replace(manifest, sources=manifest.sources | {"protocol.gone": "0", "protocol.types": "0"}))
    assert "protocol.gone and 1 more have changed" in form({})[1]


def test_a_form_without_one_of_the_modules_is_not_taken(manifest: Manifest) -> None:
    sources = {module: known for module, known in manifest.sources.items() if module != "protocol.types"}
    written(dataclasses.replace(manifest, sources=sources))
    assert "protocol.types has changed" in form({})[1]


@pytest.mark.parametrize("damage", ["cut off", "gone", "a directory"])
def test_a_damaged_library_is_named(manifest: Manifest, damage: str) -> None:
    written(manifest)
    library = compiled.LIBRARY / "form" / SHARED_FILE
    if damage == "cut off":
        library.write_bytes(library.read_bytes()[:5])
    else:
        library.unlink()
        if damage == "a directory":
            library.mkdir()
    assert form({}) == (False, f"plain Python, because {library} is damaged: run `make setup` again")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"python": "cpython-311"}', "\xff"])
def test_a_damaged_manifest_is_named(manifest: Manifest, text: str) -> None:
    compiled.MANIFEST.write_bytes(text.encode("latin-1"))
    is_compiled, words = form({})
    assert not is_compiled
    assert f"{compiled.MANIFEST} cannot be read" in words


def test_a_library_that_cannot_be_loaded_leaves_plain_python(manifest: Manifest) -> None:
    """Such as one that was made on a machine with another C library: whole, and of no use."""
    written(manifest)
    finders = list(sys.meta_path)
    words = compiled.use()
    assert words.startswith("plain Python, because the compiled form cannot be loaded: ")
    assert sys.meta_path == finders


@pytest.fixture
def compiler(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that makes a library without content."""

    def compile_into(target: Path, work: Path) -> None:
        (target / SHARED_FILE).write_bytes(b"new")

    monkeypatch.setattr(build, "LIBRARY", compiled.LIBRARY)
    monkeypatch.setattr(build, "MANIFEST", compiled.MANIFEST)
    monkeypatch.setattr(build, "LOCK", compiled.LIBRARY / "lock")
    monkeypatch.setattr(build, "compile_into", compile_into)
    monkeypatch.setattr(build, "import_all", lambda target, files: None)
    monkeypatch.setattr(build, "what_is_missing", lambda: None)
    monkeypatch.setattr(sys, "argv", ["build"])


@pytest.mark.usefixtures("compiler")
def test_a_second_build_compiles_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    build.main()
    assert form({})[0]
    before = compiled.MANIFEST.read_bytes()
    monkeypatch.setattr(build, "build", lambda: pytest.fail("compiled again"))
    capsys.readouterr()
    build.main()
    assert "already done" in capsys.readouterr().out
    assert compiled.MANIFEST.read_bytes() == before


@pytest.mark.usefixtures("compiler")
def test_the_form_before_stays_for_brokers_that_start_just_now(manifest: Manifest) -> None:
    changed = dataclasses.replace(manifest, sources=manifest.sources | {"protocol.types": "0"})
    written(changed)
    (compiled.LIBRARY / "form_of_a_killed_build").mkdir()
    (compiled.LIBRARY / "form_of_a_killed_build" / "half").touch()
    build.main()
    assert form({})[0]
    present = compiled.read_manifest().directory
    assert present != "form"
    assert {path.name for path in compiled.LIBRARY.iterdir()} == {"form", present, "manifest.json", "lock"}


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("step", "error"), [("compile_into", KeyboardInterrupt), ("compile_into", OSError), ("import_all", OSError)]
)
def test_a_build_that_fails_leaves_the_form_that_was_there(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, step: str, error: type[BaseException]
) -> None:
    def fails(target: Path, other: object) -> None:
        (target / SHARED_FILE).write_bytes(b"half")
        raise error

    changed = dataclasses.replace(manifest, sources=manifest.sources | {"protocol.types": "0"})
    written(changed)
    monkeypatch.setattr(build, step, fails)
    with pytest.raises((SystemExit, OSError)):
        build.main()
    assert compiled.read_manifest() == changed
    assert {path.name for path in compiled.LIBRARY.iterdir()} == {"form", "manifest.json", "lock"}


@pytest.mark.usefixtures("compiler")
def test_without_a_compiler_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(build, "form", lambda _: (False, "plain Python"))
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    for options, code in ([], 1), (["--if-available"], 0):
        monkeypatch.setattr(sys, "argv", ["build", *options])
        with pytest.raises(SystemExit) as ended:
            build.main()
        assert ended.value.code == code
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert "brokers run as plain Python" in lines[0]
        assert "'no-such-compiler' was not found" in lines[0]


def test_no_object_of_a_compiled_class_is_weakly_referenced() -> None:
    """mypyc 2.4 releases the first weak reference to an object together with the object, although it does not own it, and clears none:
    the next look at it is a segmentation fault. So a broker has no weak references."""
    broker = Path(compiled.__file__).parent.parent
    sources = [
        source for package in ("broker", "controller", "protocol") for source in (broker.parent / package).rglob("*.py")
    ]
    assert [str(source) for source in sources if "weakref" in source.read_text()] == []


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


REPLACED_BY_SIMULATIONS = {"broker.storage.segment": ["SENT_FROM_FILE"]}


@pytest.mark.parametrize("module", MODULES)
def test_constants_are_final(module: str) -> None:
    """Compiled code looks up any other name of a module in a dictionary, each time. Simulations replace a few, which must not be Final."""
    names = [
        name.id
        for statement in ast.parse(source_of(module).read_text()).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    ]
    assert [name for name in names if name.isupper()] == REPLACED_BY_SIMULATIONS.get(module, [])
