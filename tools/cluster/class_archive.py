"""Archives of the classes of Java programs: a JVM that maps one starts in half of the time (Java's class data sharing).

    python -m tools.cluster.class_archive

makes that of ZooKeeper, once for a Java and its jars, in the user's cache; `make setup` does. Without it, ZooKeeper starts all the same.
`tools/replay/run/spark_archive.py` makes that of Spark.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.private_files import OWNER_ONLY, write_anew
from tools.user_cache import user_cache

if TYPE_CHECKING:
    from protocol.zk.access import ZooKeeperAccess

SILENCE = ("-Xlog:cds=off", "-Xlog:class+path=off")
"""The JVM ignores an archive that does not fit, and says nothing. One that was cut off would crash it: its name has its size."""
TRAINING = "4"
"""Another number where the program does something else while its classes are noted: an older archive is not used then."""
START_TIMEOUT_S = 60
SESSION_TIMEOUT_MS = 10_000
DUMP_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Archive:
    """That of one program, for one Java and its jars."""

    directory: Path
    program: str
    java: str
    class_path: str

    def options(self) -> tuple[str, ...]:
        """For a JVM: those that use the archive, if there is one."""
        try:
            archive = self.find()
        except OSError:
            return ()
        return () if archive is None else (f"-XX:SharedArchiveFile={archive}", *SILENCE)

    def find(self) -> Path | None:
        """The archive, if it has the size that it had when it was made. Raises OSError."""
        name = self._name()
        found = sorted(self.directory.glob(f"{name}-*.jsa"))
        return next((path for path in found if path.stem == f"{name}-{path.stat().st_size}"), None)

    def keep(self, unfinished: Path) -> Path:
        """Gives a new archive its place and its name. Raises OSError."""
        # The place may be on another disk: only a whole archive gets the name.
        self.directory.mkdir(parents=True, exist_ok=True)
        name, data = self._name(), unfinished.read_bytes()
        archive, beside = self.directory / f"{name}-{len(data)}.jsa", self.directory / f"{name}.{os.getpid()}"
        beside.write_bytes(data)
        os.replace(beside, archive)
        return archive

    def _name(self) -> str:
        """It stands for the Java and the jars. Raises OSError."""
        home = Path(self.java).resolve().parent.parent
        known = [str(home), TRAINING]
        for file in (home / "lib" / "modules", *map(Path, self.class_path.split(os.pathsep))):
            found = file.stat()
            known.append(f"{file} {found.st_size} {found.st_mtime_ns}")
        digest = hashlib.sha256("\n".join(known).encode()).hexdigest()
        return f"{self.program}-{digest[:16]}"


def options(java: str, class_path: str) -> tuple[str, ...]:
    """For ZooKeeper's JVM: those that use its archive, if there is one."""
    return Archive(user_cache(), "zookeeper", java, class_path).options()


def make() -> str:
    """Makes ZooKeeper's archive if it is not there: notes the classes of one that runs for a moment. Returns what came of it, in words."""
    from tools.cluster.java import find_java
    from tools.cluster.zookeeper import JVM_OPTIONS, class_path

    java, jars = find_java(), class_path()
    archive = Archive(user_cache(), "zookeeper", java, jars)
    found = archive.find()
    if found is not None:
        return f"it is there already: {found}"
    with tempfile.TemporaryDirectory(prefix="ottla-classes-") as scratch:
        classes, unfinished = Path(scratch) / "classes", Path(scratch) / "archive"
        # With and without TLS, ZooKeeper has other classes. The archive is for both.
        noted = [*_noted(Path(scratch) / "plain"), *_noted(Path(scratch) / "secure", is_secure=True)]
        classes.write_text("".join(f"{line}\n" for line in dict.fromkeys(noted)))
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
        return f"made {archive.keep(unfinished)}"


def _noted(directory: Path, *, is_secure: bool = False) -> list[str]:
    """The classes of a ZooKeeper that runs for a moment, as the JVM writes them."""
    from protocol.zk.access import ANONYMOUS, ZooKeeperAccess
    from tools.cluster.ports import LOCAL_HOST, free_ports
    from tools.cluster.secured.authority import Authority
    from tools.cluster.zookeeper import EmbeddedZooKeeper, Stores

    zookeeper, classes = EmbeddedZooKeeper(directory), directory / "classes"
    zookeeper.create(free_ports(1)[0], Stores("./own.pem", "./own.pem") if is_secure else None)
    if is_secure:
        write_anew(directory / "own.pem", Authority.new("authority").sign("broker", [LOCAL_HOST]), OWNER_ONLY)
    zookeeper.start([f"-XX:DumpLoadedClassList={classes}"])
    try:
        zookeeper.wait_ready(START_TIMEOUT_S)
        access = ZooKeeperAccess(tls=zookeeper.tls(), protects=True) if is_secure else ANONYMOUS
        asyncio.run(_use(zookeeper.connect, access))
        zookeeper.process.send(signal.SIGTERM)  # the list is complete when it has ended
        zookeeper.process.wait_gone(START_TIMEOUT_S)
    finally:
        zookeeper.process.kill()
    return classes.read_text().splitlines()


async def _use(address: str, access: ZooKeeperAccess) -> None:
    """Sends what brokers send in their first moments, so that the classes that answer it are in the archive."""
    from protocol.zk.operations import CheckOp, CreateOp, DeleteOp, SetOp
    from protocol.zk.session import ZooKeeperSession

    session = ZooKeeperSession(address, session_timeout_ms=SESSION_TIMEOUT_MS, access=access)
    await session.start(START_TIMEOUT_S)
    try:
        await session.get_versions(["/brokers/ids", "/cluster"])
        await session.ensure_path("/brokers/ids")
        await session.create("/brokers/ids/1", b"{}", ephemeral=True)
        for look in (session.get, session.exists, session.children):
            await look("/brokers/ids", lambda _event: None)
        await session.create("/brokers/ids/change_", b"", sequence=True)
        await session.set("/brokers/ids", b"{}", 0)
        await session.multi([CheckOp("/brokers", 0), CreateOp("/other"), SetOp("/other", b"{}"), DeleteOp("/other")])
        await session.heartbeat()
    finally:
        await session.close()


def say(program: str, make: Callable[[], str], later: str) -> None:
    """Makes an archive and prints what came of it."""
    from tools.failures import ExpectedError
    from tools.terminal import echo

    try:
        echo(f"{program}'s class archive: {make()}")
    except (ExpectedError, OSError, subprocess.TimeoutExpired) as problem:
        echo(f"{program}'s class archive could not be made, so {later}: {problem}")


if __name__ == "__main__":
    say("ZooKeeper", make, "a cluster starts half a second later")
