"""The versions of what a test run needs: if a run fails that passed before, a change of one of them may be the reason."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sysconfig

import confluent_kafka

from tests.support.browser import BROWSER
from tools.bench.real_kafka.jars import NoKafka, fetched_jars

TIMEOUT_S = 20
VERSION = re.compile(r"\d+\.\d[\w.+-]*")
MISSING = "missing"
COMPILER = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
PROGRAMS = {
    f"C compiler ({COMPILER})": (COMPILER, "--version"),
    "Chromium": (BROWSER or "chromium", "--version"),
    "Maven": ("mvn", "--version"),
    "Java": ("java", "--version"),
    "Docker": ("docker", "version", "--format", "{{.Server.Version}}"),
    "kcat": ("kcat", "-V"),
    "Go": ("go", "version"),
    "Node": ("node", "--version"),
    "Rust": ("cargo", "--version"),
}


def version_of(*command: str) -> str:
    """The first version that the command prints; MISSING if it cannot run, or fails."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S, text=True, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return MISSING
    found = VERSION.search(done.stdout)
    return found[0] if found else MISSING


def versions_of_kafka() -> str:
    """Of the jars that `make kafka` fetches."""
    found = [jars for jars in (fetched_jars(), fetched_jars(kraft=True)) if jars is not None]
    try:
        return " and ".join(jars.version for jars in found) or MISSING
    except NoKafka:
        return MISSING


def versions() -> dict[str, str]:
    return {
        "Python": platform.python_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "Kafka's jars": versions_of_kafka(),
        **{name: version_of(*command) for name, command in PROGRAMS.items()},
    }
