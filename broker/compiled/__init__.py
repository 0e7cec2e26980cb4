"""The hot modules as machine code, an option: `make compile` translates them with mypyc, and a broker process then uses that form.

The source stays the truth: tests, tools and a broker without the compiled form run it as Python. `use` is the first thing that a
broker process does. It takes the compiled form only if it was made by this Python from exactly the present sources;
`OTTLA_COMPILED=0` turns it off. docs/PERFORMANCE.md says which modules, and what they gain.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

LIBRARY = Path(__file__).parent / "lib"
"""The compiled modules, as paths of their names, beside the library that they share."""
MANIFEST = LIBRARY / "manifest.json"
"""`{"python": the cache tag, "mypyc": version, "sources": {module: SHA-256 of its source}}`."""
SWITCH = "OTTLA_COMPILED"
SOURCES = Path(__file__).parent.parent.parent

MODULES = (
    "broker.apis.fetch",
    "broker.apis.produce",
    "broker.network.connection_state",
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
    "broker.storage.retention",
    "broker.storage.segment",
    "broker.storage.sparse_index",
    "broker.storage.timestamps",
    "protocol.kafka.fetch_codec",
    "protocol.kafka.framing",
    "protocol.kafka.produce_codec",
    "protocol.kafka.record_batch",
    "protocol.kafka.record_checks",
    "protocol.kafka.wire",
    "protocol.types",
)
"""What a produce and a fetch pass through. A class that is not compiled cannot inherit from one of a module here."""


def source_of(module: str) -> Path:
    return SOURCES.joinpath(*module.split(".")).with_suffix(".py")


def digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def form(environment: Mapping[str, str] = os.environ) -> tuple[bool, str]:
    """Whether a broker of this installation runs compiled, and the form in words."""
    if environment.get(SWITCH) == "0":
        return False, f"plain Python, because {SWITCH}=0"
    try:
        manifest = json.loads(MANIFEST.read_text())
    except FileNotFoundError:
        return False, "plain Python"
    except (OSError, ValueError) as error:
        return False, f"plain Python, because {MANIFEST} cannot be read: {error}"
    if manifest["python"] != sys.implementation.cache_tag:
        return False, f"plain Python, because the compiled form is for {manifest['python']}: run `make compile` again"
    for module, expected in manifest["sources"].items():
        try:
            is_same = digest(source_of(module)) == expected
        except OSError:
            is_same = False
        if not is_same:
            return (
                False,
                f"plain Python, because {module} has changed since it was compiled: run `make compile` again",
            )
    return True, f"{len(manifest['sources'])} modules compiled by mypyc {manifest['mypyc']}"


def use() -> str:
    """Makes the imports that follow take the compiled modules, if there are any. Returns the form in words."""
    is_compiled, words = form()
    if is_compiled:
        sys.meta_path.insert(0, CompiledModules())
    return words


class CompiledModules:
    """A finder of modules (PEP 302) that knows only those in LIBRARY."""

    def __init__(self) -> None:
        suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
        self._paths = {
            str(path.relative_to(LIBRARY)).removesuffix(suffix).replace(os.sep, "."): str(path)
            for path in LIBRARY.rglob(f"*{suffix}")
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._paths.get(name)
        if file is None:
            return None
        return importlib.util.spec_from_file_location(
            name, file, loader=importlib.machinery.ExtensionFileLoader(name, file)
        )
