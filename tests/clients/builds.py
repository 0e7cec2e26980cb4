"""Clients whose programs are built before they run: Go, Node and Rust.

A build fetches packages in the versions of its lock file, and is kept in `.clients/` until a source, a lock file or the version
of the tool changes; a kept build needs no network.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import threading
import tomllib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent / "programs"
BUILDS = Path(__file__).resolve().parents[2] / ".clients"
UNTRACKED = "node_modules"
LIMIT_S = 900
"""librdkafka takes two minutes of one core."""

_building: dict[str, threading.Lock] = defaultdict(threading.Lock)
"""By the directory of the programs: two clients may share one."""


@dataclass(frozen=True, slots=True)
class Build:
    """How the programs of one language are built: a directory of `programs/`, and one of `.clients/` for the result.

    Both commands run in the result's directory.
    """

    directory: str
    tools: tuple[str, ...]
    """Commands that must be there."""
    version_argument: str
    fetch: Callable[[Path, Path], list[str]]
    """(sources, result) -> the command that downloads the packages"""
    build: Callable[[Path, Path], list[str]] | None
    """(sources, result) -> the command that builds the programs; None for a language that only needs packages"""
    libraries: tuple[str, ...] = ()
    """What pkg-config must find."""
    needs_copies: bool = False
    """Then the sources are copied to the result first."""

    @property
    def sources(self) -> Path:
        return PROGRAMS / self.directory

    @property
    def result(self) -> Path:
        return BUILDS / self.directory

    def missing(self) -> str | None:
        """Builds what is not built yet. -> None, or why that is not possible here

        Programs with an error in their source are not missing: `program` raises.
        """
        with _building[self.directory]:
            return self._missing()

    def _missing(self) -> str | None:
        for tool in self.tools:
            if shutil.which(tool) is None:
                return f"{tool} is not installed"
        for library in self.libraries:
            if subprocess.run(["pkg-config", "--exists", library], check=False).returncode:
                return f"{library} is not installed, or not for programs in C (apt-get install {library}-dev)"
        built = self.result / "built"
        state = self._state()
        if built.exists() and built.read_text() == state:
            return None
        self.result.mkdir(parents=True, exist_ok=True)
        built.unlink(missing_ok=True)
        self._error.unlink(missing_ok=True)
        if self.needs_copies:
            for source in self._source_files():
                shutil.copy(source, self.result / source.name)
        fetched = self._run(self.fetch(self.sources, self.result))
        if fetched.returncode != 0:
            lines = [line.strip() for line in fetched.stdout.splitlines() if line.strip()]
            errors = [line for line in lines if "error" in line or "dial" in line]
            return f"its packages cannot be fetched: {(errors or lines or ['no output'])[0]}"
        if self.build is not None:
            done = self._run(self.build(self.sources, self.result))
            if done.returncode != 0:
                self._error.write_text(done.stdout)
                return None
        built.write_text(state)
        return None

    def program(self, name: str) -> str:
        """The path of a built program. Raises AssertionError with what the compiler said if it could not build it."""
        assert not self._error.exists(), self._error.read_text()
        return str(self.result / name)

    @property
    def _error(self) -> Path:
        return self.result / "error"

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                cwd=self.result,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, f"{command[0]} did not end in {LIMIT_S} s")

    def _source_files(self) -> list[Path]:
        return sorted(path for path in self.sources.rglob("*") if path.is_file() and UNTRACKED not in path.parts)

    def _state(self) -> str:
        """Changes with each source, and with the version of a tool."""
        digest = hashlib.sha256()
        for tool in self.tools:
            told = subprocess.run([tool, self.version_argument], cwd=self.sources, stdout=subprocess.PIPE, check=False)
            digest.update(told.stdout)
        for source in self._source_files():
            content = source.read_bytes()
            digest.update(f"{source.relative_to(self.sources)} {len(content)}\n".encode() + content)
        return digest.hexdigest()


GO = Build(
    "go",
    ("go",),
    "version",
    fetch=lambda sources, _: ["go", "-C", str(sources), "list", "-deps", "./..."],
    build=lambda sources, result: ["go", "-C", str(sources), "build", "-buildvcs=false", "-o", f"{result}/", "./..."],
)
NODE = Build(
    "node",
    ("node", "npm"),
    "--version",
    fetch=lambda sources, result: ["npm", "ci", "--omit=dev", "--ignore-scripts"],
    build=None,
    needs_copies=True,
)
RUST = Build(
    "rust",
    ("cargo", "cc", "make", "pkg-config"),
    "--version",
    fetch=lambda sources, _: ["cargo", "fetch", "--locked", "--manifest-path", str(sources / "Cargo.toml")],
    build=lambda sources, result: [
        *("env", "CFLAGS=-O0", "CXXFLAGS=-O0"),  # or librdkafka takes a minute more
        *("cargo", "build", "--locked", "--manifest-path", str(sources / "Cargo.toml"), "--target-dir", str(result)),
    ],
    libraries=("libssl",),
)  # fmt: skip


def go_version(module: str) -> str:
    """Of a module that the programs in Go require."""
    found = re.search(
        rf"^\s*(?:require )?{re.escape(module)} v(\S+)", (GO.sources / "go.mod").read_text(), re.MULTILINE
    )
    assert found is not None, f"{module} is not in go.mod"
    return found[1]


def node_version(package: str) -> str:
    locked = json.loads((NODE.sources / "package-lock.json").read_text())
    return str(locked["packages"][f"node_modules/{package}"]["version"])


def rust_version(crate: str) -> str:
    locked = tomllib.loads((RUST.sources / "Cargo.lock").read_text())
    return next(str(package["version"]) for package in locked["package"] if package["name"] == crate)
