"""The jars of a real Kafka, and the commands that run their classes.

They come from a Kafka distribution, from `.kafka` of a source tree (`make kafka`), or from Maven into the cache of this user. A source
tree has two versions: `libs` of Kafka 3.9, and `4/libs` of a Kafka that needs no ZooKeeper.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools.cluster.java import find_java
from tools.failures import ExpectedError

POM = Path(__file__).with_name("pom.xml")
SOURCE_TREE = Path(__file__).resolve().parents[3] / ".kafka"
KRAFT_TREE = SOURCE_TREE / "4"
STAMP = "fetched"
"""A file beside the directory of the jars, made when all of them are there."""
MAVEN_TIMEOUT_S = 600.0
SERVER_JAR = re.compile(r"kafka_2\.\d+-(\d+\.\d+\.\d+)\.jar")
QUICK_START = "-XX:TieredStopAtLevel=1"
"""A JVM that lives for seconds saves a third of its CPU time without the optimizing compiler."""


class NoKafka(ExpectedError):
    """There are no jars of Kafka; the message says what to do."""


@dataclass(frozen=True, slots=True)
class KafkaJars:
    """A directory with the jars of Kafka and of everything that they need."""

    libs: Path

    @property
    def class_path(self) -> str:
        return f"{self.libs}/*"

    @property
    def version(self) -> str:
        """For example `3.9.1`. Raises NoKafka if the jar of Kafka's server is missing."""
        for jar in self.libs.glob("kafka_2.*.jar"):
            match = SERVER_JAR.fullmatch(jar.name)
            if match:
                return match.group(1)
        raise NoKafka(f"{self.libs} has no jar of Kafka's server, kafka_2.13-VERSION.jar")

    @property
    def needs_zookeeper(self) -> bool:
        """Kafka 4 has KRaft only; an older one runs with a ZooKeeper here. Raises NoKafka."""
        return int(self.version.partition(".")[0]) < 4

    def command(
        self,
        *arguments: str,
        options: Sequence[str] = ("-Xmx512m", QUICK_START),
        logs: Literal["tool", "server", "silent"] = "tool",
    ) -> list[str]:
        """A JVM that runs a class, or a source file that uses the jars. A tool logs warnings to its standard output, a server more."""
        log4j = (  # that of Kafka 3, that of Kafka 4
            f"-Dlog4j.configuration=file:{POM.with_name(f'{logs}.log4j.properties')}",
            f"-Dlog4j2.configurationFile=file:{POM.with_name(f'{logs}.log4j2.properties')}",
        )
        return [find_java(), *options, *log4j, "-cp", self.class_path, *arguments]


def fetched_jars(*, kraft: bool = False) -> KafkaJars | None:
    """The jars that `make kafka` fetched into this source tree: of Kafka 3.9, or of the one with KRaft."""
    tree = KRAFT_TREE if kraft else SOURCE_TREE
    return KafkaJars(tree / "libs") if (tree / STAMP).exists() else None


def find_jars(home: Path | None = None) -> KafkaJars:
    """The jars of the distribution in `home`; without it those of the source tree; else Maven fetches them, once for each user.

    Raises NoKafka.
    """
    if home is not None:
        jars = KafkaJars(home / "libs")
        if not jars.libs.is_dir():
            raise NoKafka(f"{home} is not a Kafka distribution: it has no directory libs")
        _ = jars.version
        return jars
    return fetched_jars() or _jars_from_maven()


def _jars_from_maven() -> KafkaJars:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ottla" / "kafka"
    stamp = cache / STAMP
    jars = KafkaJars(cache / "libs")
    if stamp.exists() and stamp.stat().st_mtime >= POM.stat().st_mtime:
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise NoKafka("no Kafka to compare with: name a distribution with --kafka-home, or install Maven and a JDK")
    shutil.rmtree(cache, ignore_errors=True)
    command = [maven, "--quiet", "--batch-mode", "--file", str(POM)]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={jars.libs}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NoKafka(f"Maven did not fetch the jars of Kafka within {MAVEN_TIMEOUT_S:g} s") from None
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if line.strip()]
        raise NoKafka(f"Maven cannot fetch the jars of Kafka: {errors[0] if errors else 'it does not say why'}")
    stamp.touch()
    return jars
