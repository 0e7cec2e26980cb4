"""Java programs of the client matrix: jars that Maven fetches, a jar that javac builds, and the commands that run them.

An archive of the loaded classes, made once, saves half of the CPU time of a JVM that starts for one verb.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.real_kafka import FETCHED, JARS, POM, QUICK_START, REPOSITORY
from tools.cluster.class_archive import SILENCE, Archive
from tools.cluster.java import find_java

BUILDS = REPOSITORY / ".clients"
SCRATCH = BUILDS / "scratch"
"""Where the libraries of RocksDB and LZ4 are unpacked. A JVM that is killed leaves them there."""
PROGRAMS = Path(__file__).resolve().parent / "programs"
FETCH_TIMEOUT_S = 600
BUILD_TIMEOUT_S = 300
NOWHERE = "127.0.0.1:1"
"""Nobody listens there."""

_building = threading.Lock()
_tried: set[str] = set()
"""The names of the programs for which this process has tried to make an archive."""


@dataclass(frozen=True, slots=True)
class Jars:
    """The jars that a `pom.xml` names, in a directory of their own. `fetched` is younger than `pom` once they are there."""

    pom: Path
    directory: Path
    fetched: Path
    kafka: str | None = None
    """In place of the version in `kafka.version` of `pom`."""

    def missing(self) -> str | None:
        """Fetches the jars if necessary. -> None, or why that is not possible"""
        if self.fetched.exists() and self.fetched.stat().st_mtime >= self.pom.stat().st_mtime:
            return None
        if self.fetched == FETCHED:
            return "no jars of Kafka: run `make kafka`, which needs Maven and a JDK"
        if not shutil.which("mvn"):
            return "Maven is not installed (apt-get install maven)"
        shutil.rmtree(self.directory, ignore_errors=True)
        done = subprocess.run(
            [
                *("mvn", "--quiet", "--batch-mode", "--file", str(self.pom)),
                *("dependency:copy-dependencies", f"-DoutputDirectory={self.directory}"),
                *([] if self.kafka is None else [f"-Dkafka.version={self.kafka}"]),
            ],
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            what = " ".join(filter(None, [str(self.pom.relative_to(REPOSITORY)), self.kafka]))
            return f"Maven cannot fetch the jars of {what}: {done.stdout[-500:]}"
        self.fetched.touch()
        return None

    @property
    def class_path(self) -> str:
        return f"{self.directory}/*"

    def version(self, artifact: str) -> str:
        """Of the jar of this artifact."""
        prefix = f"{artifact}-"
        return next(jar.stem.removeprefix(prefix) for jar in self.directory.glob(f"{prefix}[0-9]*.jar"))


KAFKA = Jars(POM, JARS.libs, FETCHED)
"""Kafka's distribution of `make kafka`: its client library and its command line tools."""
NEWEST_CLIENT = Jars(PROGRAMS / "java" / "pom.xml", BUILDS / "java-newest", BUILDS / "java-newest.fetched")


def frameworks(kafka: str | None = None) -> Jars:
    """Kafka Streams and Kafka Connect, of the version in their `pom.xml` or of another one."""
    name = "frameworks" if kafka is None else f"frameworks-{kafka}"
    return Jars(PROGRAMS / "frameworks" / "pom.xml", BUILDS / name, BUILDS / f"{name}.fetched", kafka)


FRAMEWORKS = frameworks()
FRAMEWORKS_OF_KAFKA_4 = frameworks("4.1.1")


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """A class in a source file of the same name, and the jars that it is built and run with."""

    source: Path
    jars: Jars
    loads: bool = False
    """It has the verb "load", which loads the classes that an archive should have, and ends."""

    @property
    def name(self) -> str:
        return f"{self.source.stem}-{self.jars.version('kafka-clients')}"

    @property
    def jar(self) -> Path:
        """An archive takes no classes from a directory."""
        return BUILDS / f"{self.name}.jar"

    @property
    def class_path(self) -> str:
        """Each jar by its name: an archive is for the same list of jars."""
        return os.pathsep.join(map(str, [self.jar, *sorted(self.jars.directory.glob("*.jar"))]))

    def missing(self) -> str | None:
        """Fetches the jars if necessary. -> None, or why that is not possible"""
        if not shutil.which("javac"):
            return "no JDK is installed (apt-get install default-jdk-headless)"
        return self.jars.missing()

    def command(self) -> list[str]:
        """A JVM that writes warnings to stderr; arguments are appended. Fails if the program does not compile."""
        with _building:
            self._build()
            archive = Archive(BUILDS, self.name, find_java(), self.class_path)
            if self.loads and archive.find() is None and self.name not in _tried:
                _tried.add(self.name)
                self._make(archive)
        return java(self.class_path, self.source.stem, options=archive.options())

    def _build(self) -> None:
        if self.jar.exists() and self.jar.stat().st_mtime >= self.source.stat().st_mtime:
            return
        with tempfile.TemporaryDirectory(prefix="ottla-classes-") as classes:
            unfinished = f"{classes}/unfinished.jar"
            _compile(["javac", "-nowarn", "-cp", self.jars.class_path, "-d", f"{classes}/all", str(self.source)])
            _compile(["jar", "--create", "--file", unfinished, "-C", f"{classes}/all", "."])
            self.jar.unlink(missing_ok=True)
            shutil.move(unfinished, self.jar)

    def _make(self, archive: Archive) -> None:
        """Makes the archive, if this Java can: without one, programs only start more slowly."""
        for old in BUILDS.glob(f"{self.name}-*.jsa"):
            old.unlink()
        with tempfile.TemporaryDirectory(prefix="ottla-classes-") as scratch:
            unfinished = Path(scratch) / "archive"
            options = [f"-XX:ArchiveClassesAtExit={unfinished}", *SILENCE]
            subprocess.run(
                [
                    *java(self.class_path, self.source.stem, options=options),
                    *("load", json.dumps({"bootstrap": NOWHERE})),
                ],
                capture_output=True,
                timeout=BUILD_TIMEOUT_S,
                check=False,
            )
            if unfinished.exists():
                archive.keep(unfinished)


def _compile(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def java(
    class_path: str,
    *arguments: str,
    options: Sequence[str] = (),
    log_settings: str = f"{PROGRAMS}/java/stderr",
) -> list[str]:
    """A JVM. `log_settings` is a file for log4j without `.log4j.properties`. The newest client logs by slf4j-simple."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    return [
        find_java(),
        "-Xmx256m",
        QUICK_START,
        *options,
        f"-Djava.io.tmpdir={SCRATCH}",
        f"-Dlog4j.configuration=file:{log_settings}.log4j.properties",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        class_path,
        *arguments,
    ]


@functools.cache
def java_client(jars: Jars) -> JavaProgram:
    return JavaProgram(PROGRAMS / "java" / "Client.java", jars, loads=True)
