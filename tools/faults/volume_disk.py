"""Fills the log directory of a broker in a container, if its volume is small, and empties it again (FLT-28)."""

from __future__ import annotations

import re
from pathlib import Path

from tools.cluster.processes import ClusterError
from tools.faults.docker_command import docker, environment_of, inspect, save
from tools.faults.full_disk import BALLAST, HOW, SIZE_MAX

LOG_DIRS = "KAFKA_LOG_DIRS"
DEFAULT = "/var/lib/ottla/data"
"""Of the image of this project, without KAFKA_LOG_DIRS."""
PATH = re.compile(r"/[A-Za-z0-9._/-]+")
SIZE = re.compile(r"\d{1,18}")


def fill(container: str, saved: Path) -> None:
    """`saved`: where the directory is written down until `empty`. Raises ClusterError if the volume is large."""
    directory = _log_directory(container)
    reason = _why_not(container, directory)
    if reason is not None:
        raise ClusterError(reason)
    save(saved, directory)
    # `cat` ends with an error when the disk is full, which is what is wanted.
    docker("exec", container, "sh", "-c", f"cat /dev/zero > {directory}/{BALLAST} || true")


def why_not(container: str) -> str | None:
    """Why this container's disk cannot be filled; None if it can, or if the container does not run. Raises ClusterError."""
    if not inspect(container)["State"]["Running"]:
        return None
    return _why_not(container, _log_directory(container))


def _why_not(container: str, directory: str) -> str | None:
    sizes = SIZE.findall(docker("exec", container, "df", "--block-size=1", "--output=size", directory))
    if not sizes or int(sizes[-1]) > SIZE_MAX:
        large = f"{int(sizes[-1]) / (1 << 30):.1f} GiB" if sizes else "unknown size"
        where = f"{directory} of {container} is on one of {large}"
        return f"fill-disk fills only file systems of at most {SIZE_MAX >> 30} GiB, and {where}; {HOW}"
    return None


def empty(container: str, saved: Path) -> bool:
    """Removes what `fill` wrote. Returns whether there was something. Works also if the container has ended. Raises ClusterError."""
    try:
        directory = saved.read_text()
    except OSError:
        return False
    if PATH.fullmatch(directory) is None:
        raise ClusterError(f"{saved} does not name a directory: remove {BALLAST} in {container} and this file by hand")
    found = inspect(container)
    remove = ["rm", "-f", f"{directory}/{BALLAST}"]
    if found["State"]["Running"]:
        docker("exec", container, *remove)
    else:
        helper = ["run", "--rm", "--network", "none", "--volumes-from", container, "--entrypoint", remove[0]]
        docker(*helper, found["Image"], *remove[1:])
    saved.unlink(missing_ok=True)
    return True


def _log_directory(container: str) -> str:
    """The first of KAFKA_LOG_DIRS."""
    directory = environment_of(inspect(container)).get(LOG_DIRS, DEFAULT).split(",")[0].strip()
    if PATH.fullmatch(directory) is None:
        raise ClusterError(f"container {container}: {LOG_DIRS}={directory} is not a plain path")
    return directory
