"""Java programs of the client matrix: jars that Maven fetches, classes that javac builds, and the commands that run them."""

from __future__ import annotations

import functools
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from tests.support.real_kafka import FETCHED, JARS, POM, QUICK_START, REPOSITORY
from tools.cluster.java import find_java

BUILDS = REPOSITORY / ".clients"
SCRATCH = BUILDS / "scratch"
"""Where the libraries of RocksDB and LZ4 are unpacked. A JVM that is killed leaves them there."""
PROGRAMS = Path(__file__).resolve().parent / "programs"
FETCH_TIMEOUT_S = 600
BUILD_TIMEOUT_S = 300

_building = threading.Lock()


@dataclass(frozen=True, slots=True)
class Jars:
    """The jars that a `pom.xml` names, in a directory of their own. `fetched` is younger than `pom` once they are there."""

    pom: Path
    directory: Path
    fetched: Path

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
            ],
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            return f"Maven cannot fetch the jars of {self.pom.relative_to(REPOSITORY)}: {done.stdout[-500:]}"
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
FRAMEWORKS = Jars(PROGRAMS / "frameworks" / "pom.xml", BUILDS / "frameworks", BUILDS / "frameworks.fetched")


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """A class in a source file of the same name, and the jars that it is built and run with."""

    source: Path
    jars: Jars

    @property
    def classes(self) -> Path:
        return BUILDS / f"{self.source.stem}-classes-{self.jars.version('kafka-clients')}"

    def missing(self) -> str | None:
        """Fetches the jars if necessary. -> None, or why that is not possible"""
        if not shutil.which("javac"):
            return "no JDK is installed (apt-get install default-jdk-headless)"
        return self.jars.missing()

    def command(self) -> list[str]:
        """A JVM that writes warnings to stderr; arguments are appended. Fails if the program does not compile."""
        with _building:
            self._build()
        return java(f"{self.classes}:{self.jars.class_path}", self.source.stem)

    def _build(self) -> None:
        built = self.classes / f"{self.source.stem}.class"
        if built.exists() and built.stat().st_mtime >= self.source.stat().st_mtime:
            return
        done = subprocess.run(
            ["javac", "-nowarn", "-cp", self.jars.class_path, "-d", str(self.classes), str(self.source)],
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{self.source.name} does not compile: {done.stderr}"


def java(class_path: str, *arguments: str, log_settings: str = f"{PROGRAMS}/java/stderr") -> list[str]:
    """A JVM. `log_settings` is a file for log4j without `.log4j.properties`. The newest client logs by slf4j-simple."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    return [
        find_java(),
        "-Xmx256m",
        QUICK_START,
        f"-Djava.io.tmpdir={SCRATCH}",
        f"-Dlog4j.configuration=file:{log_settings}.log4j.properties",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        class_path,
        *arguments,
    ]


@functools.cache
def java_client(jars: Jars) -> JavaProgram:
    return JavaProgram(PROGRAMS / "java" / "Client.java", jars)
