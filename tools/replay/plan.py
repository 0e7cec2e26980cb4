"""A replay's plan (`plan.json`), the rows it writes, and the files of its output directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tools.private_files import write_anew

OPERATIONS_DDL = (
    "op string, client string, task int, event_id bigint, scheduled double, sent double, answered double, "
    "bytes int, error string, topic string, partition int, offset bigint, leader int"
)
PARENT_PIPE_VARIABLE = "OTTLA_REPLAY_PARENT_PIPE"
"""Set in the job's environment if its standard input is a pipe that its parent holds open while it lives."""


class OperationRow(NamedTuple):
    """The result of one operation (RPL-2). Times are seconds since 1970 UTC, None if they do not exist.

    A produce is `sent` when the client library accepted the record and `answered` when the library returned the cluster's answer.
    A fetch is `sent` when the poll that returned the record started and `answered` when it returned. A failed operation has an
    `error`; one that was never answered has an error and no `answered`. `leader` is the partition's leader in the newest metadata
    at the time (sampled every half second over a separate connection).
    """

    op: str
    client: str
    task: int
    event_id: int
    scheduled: float
    sent: float | None
    answered: float | None
    bytes: int
    error: str | None
    topic: str
    partition: int
    offset: int | None
    leader: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the Spark job needs. `first_time_us` is the trace's time that is due at the replay's start."""

    run: str
    trace: str
    directory: str
    bootstrap_servers: str
    topic: str
    start_offsets: list[int]
    """The end of each partition before the replay, where reading starts."""
    first_time_us: int
    last_time_us: int
    speed: float
    producers: int
    readers: int
    answer_timeout_s: float
    """How long the producing tasks wait for answers after the last operation was due."""
    read_timeout_s: float
    """How long the reading tasks continue after that, until all acknowledged records are read."""
    read_everything: bool
    """The trace has no fetch operations: every produced event is fetched when it is due."""
    progress_address: str | None
    """host:port to which tasks send UDP datagrams about their progress; None for no one."""

    @property
    def partition_count(self) -> int:
        return len(self.start_offsets)

    @property
    def task_count(self) -> int:
        return self.producers + self.readers

    @property
    def duration_s(self) -> float:
        return (self.last_time_us - self.first_time_us) / 1e6 / self.speed


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault during the replay: `kind` is `kill` or `return`, `at` is in seconds since 1970 UTC."""

    kind: str
    broker: int
    at: float
    partitions: list[int]
    """The partitions that the broker led immediately before."""


@dataclass(frozen=True, slots=True)
class OutputDirectory:
    """The directory with all files of one replay."""

    path: Path

    @property
    def trace(self) -> Path:
        return self.path / "trace.parquet"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def operations(self) -> Path:
        return self.path / "operations.parquet"

    @property
    def faults(self) -> Path:
        return self.path / "faults.json"

    @property
    def group(self) -> Path:
        """What the consumer group did, if one read along; its reads are in `group_reads`."""
        return self.path / "group.json"

    @property
    def group_reads(self) -> Path:
        return self.path / "group-reads.parquet"

    @property
    def analysis(self) -> Path:
        return self.path / "analysis.json"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def scratch(self) -> Path:
        """Spark's temporary files, removed when it stops."""
        return self.path / "spark-scratch"

    @property
    def spark_log(self) -> Path:
        return self.path / "spark.log"

    def read_plan(self) -> Plan:
        return Plan(**json.loads(self.plan.read_text()))

    def write_plan(self, plan: Plan) -> None:
        write_json(self.plan, asdict(plan))

    def read_faults(self) -> list[Fault]:
        if not self.faults.exists():
            return []
        return [Fault(**fault) for fault in json.loads(self.faults.read_text())]

    def write_faults(self, faults: list[Fault]) -> None:
        write_json(self.faults, [asdict(fault) for fault in faults])


def write_json(path: Path, content: Any) -> None:
    """Writes atomically: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_anew(path, json.dumps(content, indent=2) + "\n")
