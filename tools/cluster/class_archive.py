"""An archive of ZooKeeper's classes: a JVM that maps it starts in half of the time (Java's class data sharing).

    python -m tools.cluster.class_archive

makes it once for a Java and its jars, in the user's cache; `make setup` does. Without it, ZooKeeper starts all the same.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from tools.user_cache import user_cache

SILENCE = ("-Xlog:cds=off", "-Xlog:class+path=off")
"""The JVM ignores an archive that does not fit, and says nothing. One that was cut off would crash it: its name has its size."""
START_TIMEOUT_S = 60
DUMP_TIMEOUT_S = 120


def options(java: str, class_path: str) -> tuple[str, ...]:
    """For a JVM with this class path: those that use the archive, if there is one."""
    try:
        archive = _whole(user_cache(), _name(java, class_path))
    except OSError:
        return ()
    return () if archive is None else (f"-XX:SharedArchiveFile={archive}", *SILENCE)


def _whole(directory: Path, name: str) -> Path | None:
    """The archive of that name, if it has the size that it had when it was made. Raises OSError."""
    found = sorted(directory.glob(f"{name}-*.jsa"))
    return next((path for path in found if path.stem == f"{name}-{path.stat().st_size}"), None)


def _name(java: str, class_path: str) -> str:
    """It stands for the Java and the jars. Raises OSError."""
    home = Path(java).resolve().parent.parent
    known = [str(home)]
    for file in (home / "lib" / "modules", *map(Path, class_path.split(os.pathsep))):
        found = file.stat()
        known.append(f"{file} {found.st_size} {found.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(known).encode()).hexdigest()
    return f"zookeeper-{digest[:16]}"


def make() -> str:
    """Makes the archive if it is not there: notes the classes of a ZooKeeper that runs for a moment. Returns what came of it, in words."""
    from tools.cluster.java import find_java
    from tools.cluster.ports import free_ports
    from tools.cluster.zookeeper import JVM_OPTIONS, EmbeddedZooKeeper, class_path

    java, jars = find_java(), class_path()
    cache, name = user_cache(), _name(java, jars)
    found = _whole(cache, name)
    if found is not None:
        return f"it is there already: {found}"
    with tempfile.TemporaryDirectory(prefix="ottla-classes-") as scratch:
        classes, unfinished = Path(scratch) / "classes", Path(scratch) / "archive"
        zookeeper = EmbeddedZooKeeper(Path(scratch) / "zookeeper")
        zookeeper.create(free_ports(1)[0])
        zookeeper.start([f"-XX:DumpLoadedClassList={classes}"])
        try:
            zookeeper.wait_ready(START_TIMEOUT_S)
            zookeeper.process.send(signal.SIGTERM)  # the list is complete when it has ended
            zookeeper.process.wait_gone(START_TIMEOUT_S)
        finally:
            zookeeper.process.kill()
        dump = [java, *JVM_OPTIONS, "-Xshare:dump", f"-XX:SharedClassListFile={classes}", *SILENCE]
        done = subprocess.run(
            [*dump, f"-XX:SharedArchiveFile={unfinished}", "-cp", jars],
            capture_output=True,
            text=True,
            timeout=DUMP_TIMEOUT_S,
            check=False,
        )
        if done.returncode or not unfinished.exists():
            return f"{java} cannot make one: {(done.stdout + done.stderr).strip()[-300:]}"
        # The cache may be on another disk: only a whole archive gets the name.
        data = unfinished.read_bytes()
        archive, beside = cache / f"{name}-{len(data)}.jsa", cache / f"{name}.{os.getpid()}"
        beside.write_bytes(data)
        os.replace(beside, archive)
    return f"made {archive}"


def main() -> None:
    from tools.failures import ExpectedError
    from tools.terminal import echo

    try:
        echo(f"ZooKeeper's class archive: {make()}")
    except (ExpectedError, OSError, subprocess.TimeoutExpired) as problem:
        echo(f"ZooKeeper's class archive could not be made, so a cluster starts half a second later: {problem}")


if __name__ == "__main__":
    main()
