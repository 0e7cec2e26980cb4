"""Reads and writes places: paths of this machine, and URIs by the file systems that Spark knows, in a JVM that spark-submit starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import Any, Self

import click

from tools.cluster.java import find_java
from tools.failures import ExpectedError
from tools.replay.places import Place, inside, uri_of
from tools.replay.run.plan import OutputDirectory, ReplayError
from tools.replay.run.spark_process import SparkSettings, job_environment, write_java_home

STOP_TIMEOUT_S = 10.0


class Places:
    """Use it in a `with`, at whose end the copies go. An error from within names the URI, and not its copy. Without URIs, no JVM is
    started. Methods raise ReplayError, JavaNotFound."""

    def __init__(self, spark_settings: Sequence[str] = (), jvm: Any = None) -> None:
        """`spark_settings`: each `key=value`. `jvm`: one that spark-submit has started, if there is one."""
        self._settings = SparkSettings(configuration=tuple(spark_settings))
        self._jvm = jvm
        self._configuration: Any = None
        self._opened = ExitStack()
        self._outputs: list[Path] = []
        self._copies: dict[Path, str] = {}

    @classmethod
    def of_job(cls) -> Self:
        """Also before there is a Spark session."""
        from pyspark import SparkContext

        SparkContext._ensure_initialized()
        return cls(jvm=SparkContext._jvm)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._opened.close()
        for path in filter(Path.exists, self._outputs):
            if any(path.iterdir()):
                click.echo(f"What was not copied to its URI is in {path}", err=True)
            else:
                path.rmdir()
        if isinstance(error, ExpectedError):
            said = str(error)
            for path, uri in self._copies.items():
                said = said.replace(str(path), uri)
            if said != str(error):
                raise type(error)(said) from None

    def exists(self, place: Place) -> bool:
        if isinstance(place, Path):
            return place.exists()
        with self._at(place) as (system, path):
            return bool(system.exists(path))

    def names(self, place: Place) -> list[str]:
        """What is in the directory; nothing if there is none."""
        if not self.exists(place):
            return []
        if isinstance(place, Path):
            return os.listdir(place)
        with self._at(place) as (system, path):
            return [status.getPath().getName() for status in system.listStatus(path)]

    def delete(self, place: Place) -> None:
        """A file, or a directory with all that is in it; nothing if there is none."""
        if isinstance(place, str):
            with self._at(place) as (system, path):
                system.delete(path, True)
        elif place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)

    def clear(self, place: Place) -> None:
        """Removes the results of an earlier replay, so that nobody mistakes them for another's. Raises ReplayError if they may be another
        program's."""
        output = OutputDirectory(Path())
        earlier = {path.name for path in output.results} & set(self.names(place))
        for directory in (output.operations, output.groups, output.generator, output.found, output.undone):
            if directory.name in earlier and output.plan.name not in earlier:
                raise ReplayError(
                    f"{inside(place, directory.name)} exists, but is not of an earlier replay; choose another --out"
                )
        for name in earlier:
            self.delete(inside(place, name))

    def put(self, path: Path, uri: str) -> None:
        """Copies a file or a directory there, in the place of what is there."""
        self.delete(uri)
        with self._at(uri) as (system, target):
            system.copyFromLocalFile(False, True, self._path(uri_of(path)), target)

    def put_private(self, path: Path, uri: str) -> None:
        """Copies a small file there, which only its owner can read from the beginning, if the file system knows owners."""
        with self._at(uri) as (system, target):
            owner_only = self._jvm.org.apache.hadoop.fs.permission.FsPermission("600")
            out = system.createFile(target).permission(owner_only).recursive().build()
            out.write(path.read_bytes())
            out.close()

    def fetch(self, uri: str, into: Path, leave_out: Collection[str] = ()) -> Path:
        """Copies a file into the directory, or what is in the directory at the URI. Returns the path of the copy."""
        with self._at(uri) as (system, path):
            for status in system.listStatus(path):
                name = status.getPath().getName()
                if name not in leave_out:
                    system.copyToLocalFile(False, status.getPath(), self._path(uri_of(into / name)), True)
            return into / path.getName() if system.getFileStatus(path).isFile() else into

    def local_copy(self, place: Place, leave_out: Collection[str] = ()) -> Path:
        """The place itself if it is on this machine."""
        if isinstance(place, Path):
            return place
        path = self.fetch(place, self.new_directory(PurePath(place).name), leave_out)
        self._copies[path] = place
        return path

    def new_directory(self, name: str) -> Path:
        """A directory for the time of the `with`."""
        scratch = tempfile.TemporaryDirectory(prefix="ottla-replay-", ignore_cleanup_errors=True)
        path = Path(self._opened.enter_context(scratch)) / name
        path.mkdir()
        return path

    def new_output(self, place: Place) -> OutputDirectory:
        """For a replay. If the place is a URI, the job puts the results there; then the directory is to be removed."""
        if isinstance(place, Path):
            return OutputDirectory(place)
        self._outputs.append(Path(tempfile.mkdtemp(prefix="ottla-replay-out-")))
        return OutputDirectory(self._outputs[-1], place)

    def results(self, place: Place) -> OutputDirectory:
        """Of an earlier replay, without its tables if they are elsewhere."""
        if isinstance(place, Path):
            return OutputDirectory(place)
        tables = [path.name for path in OutputDirectory(Path()).tables]
        return OutputDirectory(self.local_copy(place, tables), place)

    def _path(self, uri: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(uri)

    @contextmanager
    def _at(self, uri: str) -> Iterator[tuple[Any, Any]]:
        """The file system and Hadoop's path. An exception of Java becomes one line."""
        from py4j.protocol import Py4JError, Py4JJavaError

        if self._jvm is None:
            self._jvm = self._opened.enter_context(jvm(self.new_directory("jvm"), self._settings))
        try:
            if self._configuration is None:
                spark = self._jvm.org.apache.spark
                self._configuration = spark.deploy.SparkHadoopUtil.get().newConfiguration(spark.SparkConf(True))
            path = self._path(uri)
            yield path.getFileSystem(self._configuration), path
        except Py4JJavaError as problem:
            raise ReplayError(f"{uri}: {problem.java_exception.toString().splitlines()[0]}") from None
        except Py4JError as problem:
            raise ReplayError(f"{uri}: {problem}") from None


@contextmanager
def jvm(directory: Path, settings: SparkSettings) -> Iterator[Any]:
    """A JVM without a Spark session. Raises ReplayError, JavaNotFound."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    before, log = dict(os.environ), directory / "log"
    environment = job_environment(write_java_home(directory / "java-home", Path(find_java())), directory, settings)
    try:
        os.environ.clear()
        os.environ.update(environment)
        with log.open("wb") as file:
            gateway = launch_gateway(popen_kwargs={"stdout": file, "stderr": file, "cwd": directory})
    except PySparkException:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise ReplayError(f"no JVM for the file systems of Spark: {lines[-1] if lines else 'no reason'}") from None
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        yield gateway.jvm
    finally:
        process: subprocess.Popen[bytes] = gateway.proc
        gateway.shutdown()
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
