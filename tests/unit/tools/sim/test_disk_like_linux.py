"""The simulated disk answers as a real file system does: random calls on both, then a kill, then both are compared."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from broker.storage.disk.filesystem import FileSystem
from tools.sim.world.disk import MemoryDisk

Call = tuple[str, Any, Any]
"""(method, its path or which of the open files, what else it gets)"""

directories = st.sampled_from(["/data", "/data/b"])
paths = st.builds("{}/{}".format, directories, st.sampled_from(["x", "y", "b"]))
which = st.integers(0, 9)
sizes = st.integers(0, 9)
pieces = st.lists(st.binary(max_size=5), min_size=1, max_size=3)
nothing = st.just(())
of_a_directory = st.tuples(
    st.sampled_from(["make_directory", "make_new_directory", "list", "sync_directory", "remove_tree"]),
    directories,
    nothing,
)
OPENING = ("open", "create", "reopen", "open_to_keep", "reopen_to_keep", "lock")
of_a_path = st.tuples(
    st.sampled_from([*OPENING, "sync_path", "remove", "is_directory", "exists", "read_file"]), paths, nothing
)
of_a_file = st.one_of(
    st.tuples(st.sampled_from(["close", "size", "sync"]), which, nothing),
    st.tuples(st.just("truncate"), which, st.tuples(sizes)),
    st.tuples(st.just("write"), which, st.tuples(pieces, sizes)),
    st.tuples(st.just("read"), which, st.tuples(sizes, sizes)),
)
with_more = st.one_of(
    st.tuples(st.just("truncate_path"), paths, st.tuples(sizes)),
    st.tuples(st.just("read_end"), paths, st.tuples(sizes)),
    st.tuples(st.sampled_from(["write_new", "write_atomically"]), paths, st.tuples(st.binary(max_size=5))),
    st.tuples(st.just("rename"), paths, st.tuples(st.sampled_from(["x", "y", "b"]))),
)
calls = st.lists(st.one_of(of_a_directory, of_a_path, of_a_file, with_more), max_size=40)


@given(calls, calls)
@example([("open", "/data/y", ()), ("lock", "/data/y", ())], [])
def test_a_real_file_system_answers_the_same(before: list[Call], after: list[Call]) -> None:
    """Two processes, one after the other. Both are killed with their files open."""
    disk = MemoryDisk()
    disk.make_directory("/data/b")
    with TemporaryDirectory() as root:
        FileSystem().make_directory(f"{root}/data/b")
        for script in (before, after):
            expected = answered_and_killed(lambda script=script: answers(FileSystem(), root, script))  # type: ignore[misc]
            assert answers(disk, "", script) == expected
            disk = disk.for_next_process()
            assert {name: inode and bytes(inode.content) for name, inode in disk.names.items()} == tree(Path(root))


def answers(files: FileSystem, root: str, script: Sequence[Call]) -> list[Any]:
    """What each call returned or raised. Descriptors are shown as the order in which their numbers were first given."""
    opened: list[int] = []
    given_numbers: list[int] = []
    found: list[Any] = []
    for name, target, more in script:
        if isinstance(target, int):
            if not opened:
                continue
            target = opened[target % len(opened)]
            arguments = more
        else:
            arguments = more if name != "rename" else (f"{root}{os.path.dirname(target)}/{more[0]}",)
            target = root + target
        try:
            answer = getattr(files, name)(target, *arguments)
        except OSError as error:
            found.append((name, error.errno))
            continue
        if name == "close":
            opened.remove(target)
        elif name in OPENING:
            opened.append(answer)
            if answer not in given_numbers:
                given_numbers.append(answer)
            answer = given_numbers.index(answer)
        found.append((name, sorted(answer) if name == "list" else answer))
    return found


def answered_and_killed(work: Callable[[], Any]) -> Any:
    """The result of a function that runs in a process of its own, which is then killed as it is."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            kept = os.dup2(writer, 1000)  # the numbers of the files do not depend on it
            os.close(writer)
            os.write(kept, pickle.dumps(work()))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(said)


def tree(root: Path) -> dict[str, bytes | None]:
    """Path below the root -> content; None for a directory."""
    found: dict[str, bytes | None] = {"/": None}
    for path in root.rglob("*"):
        found[f"/{path.relative_to(root)}"] = path.read_bytes() if path.is_file() else None
    return found
