"""Where the embedded ZooKeeper's jars are, and what to install where there are none."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.cluster import zookeeper
from tools.cluster.zookeeper import ZooKeeperError, class_path


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


def test_without_jars_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install .` of a checkout."""
    monkeypatch.setattr(zookeeper, "PACKED_JARS", tmp_path)
    monkeypatch.setattr(zookeeper.util, "find_spec", lambda _: None)
    with pytest.raises(ZooKeeperError) as refused:
        class_path()
    for way in ("pip install dist/ottla-*.whl", "pip install 'pyspark>=3.5'", "--zookeeper HOST:PORT"):
        assert way in str(refused.value)
