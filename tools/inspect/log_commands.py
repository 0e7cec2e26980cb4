"""`ottla inspect log` and `ottla inspect verify`: the contents of brokers' disks, with the brokers stopped or running."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from protocol.types import TopicPartition
from tools.admin.connection import format_option, print_json
from tools.cluster.run_directory import RunDirectory
from tools.failures import AdminError, errors_in_one_line
from tools.inspect import disk_files, log_dump
from tools.inspect.disk_checks import Finding, LogFacts, settled
from tools.inspect.replica_comparison import compare
from tools.numbers import PATH, IntRange
from tools.terminal import echo, echo_lines

INSIDE = "a partition's directory, for example DIR/orders-0, or one of its .log files"


@click.command("log")
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
@click.option("--records", is_flag=True, help="show the records of each batch: time, key, value, headers")
@click.option(
    "--from-offset",
    type=IntRange(min=0),
    default=0,
    metavar="OFFSET",
    help="start at the batch that contains this offset",
)
@format_option
def log_command(paths: Sequence[Path], records: bool, from_offset: int, output: str) -> None:
    """Print the contents of a partition's directory, or of one .log file: segments, batches, indexes, epochs, producers."""
    with errors_in_one_line():
        contents = [_content(path, records, from_offset) for path in paths]
    if output == "json":
        print_json(contents)
        return
    for number, content in enumerate(contents):
        lines = log_dump.directory_lines(content) if "segments" in content else log_dump.segment_lines(content)
        echo_lines([*([""] if number else []), *lines])


def _content(path: Path, records: bool, from_offset: int) -> dict[str, object]:
    """Raises AdminError."""
    try:
        if path.is_dir():
            if disk_files.segment_files(path):
                return log_dump.directory_content(path, records=records, from_offset=from_offset)
            partitions = ", ".join(str(tp) for tp in list(disk_files.partition_directories(path))[:5])
            hint = f"it has {partitions}: use one of them" if partitions else f"expected {INSIDE}"
            raise AdminError(f"{path} has no segments; {hint}")
        match = disk_files.SEGMENT_FILE.fullmatch(path.name)
        if match is None or match[2] != "log":
            raise AdminError(f"{path} is not {INSIDE}")
        return log_dump.segment_content(path, records=records, from_offset=from_offset)
    except OSError as error:
        raise AdminError(f"{error.filename or path} cannot be read: {error.strerror}") from None


@click.command()
@click.argument("directories", nargs=-1, type=PATH, metavar="[DIR...]")
@click.option(
    "--cluster",
    type=PATH,
    metavar="RUN_DIR",
    help="check all brokers' log.dirs of a cluster from `ottla cluster start`",
)
@format_option
def verify(directories: Sequence[Path], cluster: Path | None, output: str) -> None:
    """Check log directories (log.dirs) or partitions' directories, and compare replicas that are in several of them.

    Checks CRCs, order, indexes, epochs, checkpoints and producer snapshots. Brokers may run. The exit code is 1 if there are findings.
    """
    if not directories and cluster is None:
        raise click.UsageError("missing directories: give entries of log.dirs, or --cluster RUN_DIR.")
    with errors_in_one_line():
        paths = [*directories, *(_log_dirs(cluster) if cluster is not None else ())]
        replicas, findings = _look(paths)
    different, compared = compare(replicas)
    findings += different
    count = sum(map(len, replicas.values()))
    batches = sum(len(facts.digests) for found in replicas.values() for facts in found)
    if output == "json":
        print_json(
            {
                "directories": [str(path) for path in paths],
                "logs": count,
                "batches": batches,
                "compared": compared,
                "findings": [finding._asdict() for finding in findings],
            }
        )
    else:
        for finding in findings:
            echo(str(finding))
        echo(
            f"{count} logs, {batches} batches, {compared} partitions compared between replicas: {len(findings)} findings"
        )
    if findings:
        sys.exit(1)


def _look(paths: Sequence[Path]) -> tuple[dict[TopicPartition, list[LogFacts]], list[Finding]]:
    """Raises AdminError."""
    replicas: dict[TopicPartition, list[LogFacts]] = {}
    findings: list[Finding] = []
    for path in paths:
        try:
            if not path.is_dir():
                raise AdminError(
                    f"{path} is not a directory; expected an entry of log.dirs, or a partition's directory in one"
                )
            tp = disk_files.partition_of(path.name)
            if tp is not None and not disk_files.is_log_directory(path) and disk_files.segment_files(path):
                logs, own = settled(path.parent, {tp: path})
            elif disk_files.is_log_directory(path) or disk_files.partition_directories(path):
                logs, own = settled(path, disk_files.partition_directories(path))
            else:
                raise AdminError(
                    f"{path} has no logs; expected an entry of log.dirs, or a partition's directory in one"
                )
        except OSError as error:
            raise AdminError(f"{error.filename or path} cannot be read: {error.strerror}") from None
        findings += own
        for found, facts in logs.items():
            replicas.setdefault(found, []).append(facts)
            findings += facts.findings
    return replicas, findings


def _log_dirs(cluster: Path) -> list[Path]:
    """Raises AdminError, ClusterError."""
    found = []
    for broker in RunDirectory(cluster).brokers():
        found += [Path(name.strip()) for name in broker.properties().get("log.dirs", str(broker.data)).split(",")]
    if not found:
        raise AdminError(f"{cluster} has no brokers; expected the --dir of `ottla cluster start`")
    return [path for path in found if path.is_dir()]
