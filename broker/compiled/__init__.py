"""The hot modules as machine code: `make setup` translates them with mypyc where a C compiler is, and a broker process uses that form.

The source stays the truth: tests, tools and a broker without the compiled form run it as Python. `use` is the first thing that a
broker process does. It takes the compiled form only if it is whole, and was made by this Python from exactly the present sources;
`OTTLA_COMPILED=0` turns it off. docs/PERFORMANCE.md says which modules, and what they gain.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

LIBRARY = Path(__file__).parent / "lib"
"""The compiled forms, each in a directory of its own, and the manifest, which names the present one."""
MANIFEST = LIBRARY / "manifest.json"
SWITCH = "OTTLA_COMPILED"
SOURCES = Path(__file__).parent.parent.parent
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
"""How the names of compiled modules end: with the Python, the machine and the C library that they are for."""
SHARED = "__mypyc"
"""How the name of the library ends that holds the code of all modules. The file of a module only refers to it."""

MODULES = (
    "broker.apis.fetch",
    "broker.apis.gathered_produces",
    "broker.apis.produce",
    "broker.network.answer_writer",
    "broker.network.brief_polling",
    "broker.network.connection",
    "broker.network.connection_state",
    "broker.network.connection_under_faults",
    "broker.network.file_sender",
    "broker.network.frame_reader",
    "broker.network.kept_buffers",
    "broker.network.large_frames",
    "broker.network.processor",
    "broker.network.request_channel",
    "broker.network.request_metrics",
    "broker.network.unsent_answers",
    "broker.purgatory",
    "broker.replication.appending.appends",
    "broker.replication.appending.delayed_produce",
    "broker.replication.fetching.delayed_fetch",
    "broker.replication.fetching.fetch_reads",
    "broker.replication.fetching.fetch_session",
    "broker.replication.fetching.fetches",
    "broker.replication.hosted_partitions",
    "broker.replication.partition",
    "broker.replication.record_deletions",
    "broker.replication.replica_state",
    "broker.request_handler",
    "broker.storage.leader_epochs",
    "broker.storage.log",
    "broker.storage.next_reads",
    "broker.storage.producers.log_producers",
    "broker.storage.producers.produced_batches",
    "broker.storage.producers.producer_state",
    "broker.storage.producers.unreplicated",
    "broker.storage.retention",
    "broker.storage.segment",
    "broker.storage.sparse_index",
    "broker.storage.stored_records",
    "broker.storage.timestamps",
    "protocol.kafka.fetch_codec",
    "protocol.kafka.framing",
    "protocol.kafka.produce_codec",
    "protocol.kafka.record_batch",
    "protocol.kafka.record_checks",
    "protocol.kafka.single_fetch",
    "protocol.kafka.wire",
    "protocol.types",
)
"""What a produce and a fetch pass through. A class that is not compiled cannot inherit from one of a module here."""


def source_of(module: str) -> Path:
    return SOURCES.joinpath(*module.split(".")).with_suffix(".py")


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the compiled form was made from and by, and of what it consists."""

    suffix: str
    """SUFFIX of the Python that made it."""
    mypyc: str
    """Version."""
    sources: dict[str, str]
    """Module -> SHA-256 of its source."""
    directory: str
    """Where its files are, below LIBRARY."""
    files: dict[str, str]
    """Path below the directory -> SHA-256."""


def read_manifest() -> Manifest:
    """Raises OSError (FileNotFoundError: there is no compiled form) and ValueError."""
    try:
        manifest = Manifest(**json.loads(MANIFEST.read_bytes()))
        if not (isinstance(manifest.sources, dict) and isinstance(manifest.files, dict)):
            raise TypeError("sources and files are not objects")
    except TypeError as error:
        raise ValueError(str(error)) from error
    return manifest


def form(environment: Mapping[str, str] = os.environ) -> tuple[bool, str]:
    """Whether a broker of this installation runs compiled, and the form in words."""
    if environment.get(SWITCH) == "0":
        return False, f"plain Python, because {SWITCH}=0"
    try:
        manifest = read_manifest()
    except FileNotFoundError:
        return False, "plain Python"
    except (OSError, ValueError) as error:
        return False, f"plain Python, because {MANIFEST} cannot be read: {error}"
    if manifest.suffix != SUFFIX:
        return False, f"plain Python, because the compiled form is for {manifest.suffix}: run `make setup` again"
    changed = sorted(module for module, known in manifest.sources.items() if not is_same(source_of(module), known))
    changed += sorted(set(MODULES) - set(manifest.sources))
    if changed:
        others = f" and {len(changed) - 1} more have" if len(changed) > 1 else " has"
        return False, f"plain Python, because {changed[0]}{others} changed since `make setup` compiled the modules"
    for file, known in manifest.files.items():
        if not is_same(LIBRARY / manifest.directory / file, known):
            return (
                False,
                f"plain Python, because {LIBRARY / manifest.directory / file} is damaged: run `make setup` again",
            )
    return True, f"{len(manifest.sources)} modules compiled by mypyc {manifest.mypyc}"


def is_same(file: Path, known: str) -> bool:
    """Whether the file can be read and has this SHA-256."""
    try:
        return digest(file) == known
    except OSError:
        return False


def use() -> str:
    """Makes the imports that follow take the compiled modules, if there are any. Returns the form in words."""
    is_compiled, words = form()
    if not is_compiled:
        return words
    manifest = read_manifest()
    try:
        take(LIBRARY / manifest.directory, manifest.files)
    except ImportError as error:  # such as one that was made on a machine with a newer C library
        return f"plain Python, because the compiled form cannot be loaded: {error}"
    return words


def take(directory: Path, files: Sequence[str] | Mapping[str, str]) -> None:
    """Makes the imports that follow take the compiled modules in these files. Raises ImportError, and then changes nothing."""
    finder = CompiledModules(directory, files)
    sys.meta_path.insert(0, finder)
    try:
        for name in finder.shared:
            importlib.import_module(name)
    except ImportError:
        sys.meta_path.remove(finder)
        raise


class CompiledModules:
    """A finder of modules (PEP 302) that knows only those of a compiled form."""

    def __init__(self, directory: Path, files: Sequence[str] | Mapping[str, str]) -> None:
        """`files` are paths below the directory."""
        self._paths = {
            file.removesuffix(SUFFIX).replace("/", "."): str(directory / file)
            for file in files
            if file.endswith(SUFFIX)
        }
        self.shared = [name for name in self._paths if name.endswith(SHARED)]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._paths.get(name)
        if file is None:
            return None
        return importlib.util.spec_from_file_location(
            name, file, loader=importlib.machinery.ExtensionFileLoader(name, file)
        )
