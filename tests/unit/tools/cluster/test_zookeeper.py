"""Where the embedded ZooKeeper's jars are, and what to install where there are none."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.cluster import zookeeper
from tools.cluster.processes import ServerProcess
from tools.cluster.run_directory import RunDirectory
from tools.cluster.zookeeper import MANY_PARTITIONS, EmbeddedZooKeeper, ZooKeeperError, class_path


def test_packed_jars_come_before_those_of_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "PACKED_JARS", tmp_path / "packed")
    monkeypatch.setattr(
        zookeeper.util, "find_spec", lambda _: SimpleNamespace(origin=str(tmp_path / "pyspark" / "__init__.py"))
    )
    for directory in ("packed", "pyspark/jars"):
        (tmp_path / directory).mkdir(parents=True)
    theirs = [tmp_path / "pyspark/jars" / name for name in ("zookeeper-3.9.jar", "slf4j-api-2.jar", "spark-core.jar")]
    for jar in theirs:
        jar.touch()
    assert class_path().split(os.pathsep) == [str(theirs[0]), str(theirs[1])]
    own = tmp_path / "packed" / "zookeeper-3.9.jar"
    own.touch()
    assert class_path() == str(own)


def test_its_files_name_no_path_that_java_could_misread(tmp_path: Path) -> None:
    embedded = EmbeddedZooKeeper(tmp_path / "josé")
    embedded.create(2181)
    assert sorted(path.name for path in embedded.directory.iterdir()) == ["log4j2.properties", "zoo.cfg"]
    assert not any(str(tmp_path) in path.read_text() for path in embedded.directory.iterdir())


def test_partitions_are_counted_once(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for broker, partitions in ((1, ("a-0", "a-1", "b-c-0")), (2, ("a-1", "b-c-0", "b-c-1"))):
        files = directory.broker_directory(broker)
        files.create("localhost:1", (1, 2, 3), {"log.dirs": "data,more"})
        for name in (*partitions, "a-7.0123abcd-delete", "a-8.0123abcd-stray"):
            (files.path / "more" / name).mkdir(parents=True)
        (files.path / "more" / "meta.properties").touch()
    assert directory.partitions() == 4
    directory.broker_directory(1).config_file.unlink()
    assert directory.partitions() == 3


@pytest.mark.parametrize(("partitions", "level"), [(0, 1), (MANY_PARTITIONS, 1), (MANY_PARTITIONS + 1, 4)])
def test_many_partitions_get_both_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int, level: int
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(ServerProcess, "start", lambda self, command, environment: commands.append(command))
    zookeeper = EmbeddedZooKeeper(tmp_path)
    zookeeper.create(1)
    zookeeper.start(partitions=partitions)
    (command,) = commands
    assert [option for option in command if "TieredStopAtLevel" in option][-1] == f"-XX:TieredStopAtLevel={level}"


def test_without_jars_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install .` of a checkout."""
    monkeypatch.setattr(zookeeper, "PACKED_JARS", tmp_path)
    monkeypatch.setattr(zookeeper.util, "find_spec", lambda _: None)
    with pytest.raises(ZooKeeperError) as refused:
        class_path()
    for way in ("pip install dist/ottla-*.whl", "pip install 'pyspark>=3.5'", "--zookeeper HOST:PORT"):
        assert way in str(refused.value)
