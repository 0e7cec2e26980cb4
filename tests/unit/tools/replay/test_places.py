"""Paths and URIs; copies to and from a file system of Hadoop (RPL-4)."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest
from click import BadParameter

from tools.replay.places import PLACE, Place, inside, is_uri, uri_of
from tools.replay.run.open_places import Places
from tools.replay.run.plan import ReplayError
from tools.replay.run.run_commands import check_apart
from tools.replay.traces.schema import Trace, TraceError


def test_paths_and_uris() -> None:
    for text in ("hdfs://host:1/a", "s3a://bucket/a/", "file:///a", "hdfs:/a"):
        place = PLACE.convert(text, None, None)
        assert is_uri(place)
        assert uri_of(place) == text.rstrip("/")
        assert inside(place, "b") == f"{uri_of(place)}/b"
    for text in ("a", "/a/b", "./hdfs:a", "hdfs:a"):
        assert PLACE.convert(text, None, None) == Path(text)
    assert uri_of(Path("/a b/{c}")) == "file:///a b/{c}"


@pytest.mark.parametrize(
    ("trace", "results", "are_nested"),
    [
        (Path("/d"), Path("/d/out"), True),
        ("file:///d/undone", Path("/d"), True),
        (Path("/d/undone"), "file:/d", True),
        ("hdfs:///d/undone", "hdfs://nn:8020/d", True),
        ("s3a://bucket/d", "s3a://bucket/d/out", True),
        ("s3a://bucket/d", "s3a://other/d", False),
        ("hdfs:///d", Path("/d"), False),
        (Path("/d"), Path("/d2"), False),
    ],
)
def test_a_trace_and_results_in_one_another(trace: Place, results: Place, are_nested: bool) -> None:
    """Earlier results are removed, and the trace with them."""
    if are_nested:
        with pytest.raises(BadParameter, match="in one another"):
            check_apart(trace, results)
    else:
        check_apart(trace, results)


@pytest.mark.thorough
def test_copies_of_what_is_elsewhere(tmp_path: Path) -> None:
    """`viewfs://shared/data` is a directory of this machine."""
    shared, here, uri = tmp_path / "shared", tmp_path / "here", "viewfs://shared/data"
    shared.mkdir()
    (here / "a {b}").mkdir(parents=True)
    (here / "a {b}" / "c").write_bytes(bytes(range(256)))
    before = dict(os.environ)
    with Places([f"spark.hadoop.fs.viewfs.mounttable.shared.link./data=file://{shared}"]) as places:
        assert places.names(f"{uri}/none") == []
        for _ in range(2):
            places.put(here / "a {b}", f"{uri}/a {{b}}")
        places.put_private(here / "a {b}" / "c", f"{uri}/secret")
        assert (shared / "secret").stat().st_mode & 0o777 == 0o600
        assert sorted(places.names(uri)) == ["a {b}", "secret"]
        copy = places.local_copy(uri, ["secret"])
        assert [path.name for path in copy.iterdir()] == ["a {b}"]
        assert (copy / "a {b}" / "c").read_bytes() == bytes(range(256))
        assert places.local_copy(f"{uri}/secret").read_bytes() == bytes(range(256))
        places.delete(f"{uri}/secret")
        assert not places.exists(f"{uri}/secret")
        places.put(here, f"{uri}/out/operations")
        with pytest.raises(ReplayError, match="exists, but is not of an earlier replay; choose another --out"):
            places.clear(f"{uri}/out")
        places.put(here / "a {b}" / "c", f"{uri}/out/plan.json")
        places.clear(f"{uri}/out")
        assert places.names(f"{uri}/out") == []
        for wrong, says in (("nosuch://a/b", 'No FileSystem for scheme "nosuch"'), (f"{uri}/none", "FileNotFound")):
            with pytest.raises(ReplayError, match=says):
                places.local_copy(wrong)
        output = places.new_output(uri)
        assert output.path.is_dir()
    assert not copy.exists()
    assert not output.path.exists()
    assert dict(os.environ) == before


def test_an_error_about_a_copy_names_the_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(places: Places, uri: str, into: Path, leave_out: Collection[str] = ()) -> Path:
        (into / "part.parquet").write_bytes(b"no Parquet")
        return into

    monkeypatch.setattr(Places, "fetch", fetch)
    with (
        pytest.raises(TraceError, match=r"^hdfs://nn/traces/day/part.parquet is not a Parquet file"),
        Places() as places,
    ):
        Trace(places.local_copy("hdfs://nn/traces/day"))
