"""ZooKeeper starts with an archive of its classes, without one, and with one that is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cluster import class_archive
from tools.cluster.java import find_java
from tools.cluster.ports import free_ports
from tools.cluster.zookeeper import EmbeddedZooKeeper, class_path


@pytest.mark.thorough
def test_an_archive_is_used_and_a_broken_one_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert class_archive.options(find_java(), class_path()) == ()
    assert class_archive.make().startswith("made ")
    assert class_archive.make().startswith("it is there already")
    (archive,) = (tmp_path / "cache" / "ottla").iterdir()
    assert str(archive) in maps_of_a_zookeeper(tmp_path / "whole")
    data = archive.read_bytes()
    for number, broken in enumerate((b"", data[: len(data) // 2], bytes(len(data)))):
        archive.write_bytes(broken)
        assert str(archive) not in maps_of_a_zookeeper(tmp_path / f"broken-{number}")


def maps_of_a_zookeeper(directory: Path) -> str:
    """The files that a ZooKeeper which serves has in its memory."""
    zookeeper = EmbeddedZooKeeper(directory)
    zookeeper.create(free_ports(1)[0])
    zookeeper.start()
    try:
        zookeeper.wait_ready(60)
        return Path(f"/proc/{zookeeper.process.pid()}/maps").read_text()
    finally:
        zookeeper.process.kill()
