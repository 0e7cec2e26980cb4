"""A replay's plan (`plan.json`), and the files of its output directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.failures import ExpectedError
from tools.group_protocols import CLASSIC
from tools.private_files import write_anew
from tools.replay.checks import NO_FAILURES
from tools.replay.places import Place, inside

PARENT_PIPE_VARIABLE = "OTTLA_REPLAY_PARENT_PIPE"
"""Set in the job's environment if its standard input is a pipe that closes when the parent process ends."""
GROUP_NAMES = "ottla-replay-"
"""Put before each consumer group's name, so that a replay never joins a group of the target's own consumers."""


class ReplayError(ExpectedError):
    """A replay that cannot run; the text says in one line why and what to do."""


CLIENTS_KNOWN_MAX = 200
"""A plan has the operations of so many clients, and a query their tasks. That spares a short replay a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a replay sends, and what must hold of it: as the options say."""

    bootstrap_servers: str
    tasks: int = 2
    speeds: list[float] = field(default_factory=lambda: [1.0])
    """Empty: as fast as possible. With several, each but the last lasts `step_s`."""
    step_s: float = 0.0
    clients: int = 1
    """Each client of the trace is that many clients."""
    bytes: float = 1.0
    """Factor of the sizes."""
    answer_timeout_s: float = 60.0
    groups: bool = True
    """Whether clients with a consumer group are members of one in the cluster."""
    group_protocol: str = CLASSIC
    """Kafka's `group.protocol` of these members."""
    max_failed: str = NO_FAILURES
    """How many operations may fail, or which share of them."""
    gates: Sequence[str] = ()
    """What must hold of the figures, besides: conditions of --assert."""
    forbid: Sequence[str] = ()
    """What fails the replay also if it happens to batches without acks=all: some of `checks.FORBIDDEN`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Asked):
    """Everything that the Spark job needs."""

    run: int
    """The number of the replay, 32 bits, which the stamp of each record has."""
    trace: str
    """An absolute path, or a URI."""
    directory: str
    """Where the results are in the end: an absolute path, or a URI."""
    topics: dict[str, str]
    """Topic of the trace -> topic of the cluster."""
    partitions: dict[str, int]
    """Topic of the cluster -> its number of partitions."""
    start_offsets: dict[str, list[int]]
    """Topic of the cluster -> the end of each partition before the replay, where the verdict starts to read."""
    control: str
    """host:port of the control server; empty: the job has its own."""
    trace_rows: int
    trace_seconds: float
    trace_hash: str = ""
    """Of the trace's files; empty in a plan of an older ottla."""
    trace_columns: list[str] = field(default_factory=list)
    """Of the trace's files, in their types; empty: Spark looks."""
    trace_clients: dict[str, int] = field(default_factory=dict)
    """Client -> the number of its operations; empty if there are more than CLIENTS_KNOWN_MAX: Spark counts."""
    trace_has_ends: bool = True
    """Whether transactions end in the trace."""
    compacted: list[str] = field(default_factory=list)
    """Topics of the cluster that compaction may remove records from."""
    changes: list[str] = field(default_factory=list)
    """What of the trace is replayed otherwise, in words."""
    security_protocol: str = "PLAINTEXT"
    """Kafka's name. The rest of what a client needs to connect is in `access.json`."""

    @property
    def operations(self) -> int:
        """How many the replay sends."""
        return self.trace_rows * self.clients

    @property
    def load(self) -> dict[str, Any]:
        """What decides which operations are due when, in words. Runs can be compared if it is the same."""
        speeds = " then ".join(f"{speed:g}x" for speed in self.speeds) or "as fast as possible"
        return {
            "trace": f"{self.trace_rows:,} operations, {self.trace_hash or 'of an unknown content'}",
            "speed": speeds + (f", {self.step_s:g} s each" if len(self.speeds) > 1 else ""),
            "clients": self.clients,
            "bytes": self.bytes,
            "groups": self.group_protocol if self.groups else "none",
        }

    @property
    def seconds(self) -> float | None:
        """How long the replay takes; None for as fast as possible."""
        left, took = self.trace_seconds, 0.0
        for number, speed in enumerate(self.speeds):
            if number == len(self.speeds) - 1 or left <= self.step_s * speed:
                return took + left / speed
            left, took = left - self.step_s * speed, took + self.step_s
        return None


class OutputDirectory:
    """The directory of this machine with all files of one replay."""

    def __init__(self, path: Path, uri: str = "") -> None:
        self.path = path
        self.uri = uri
        """Where the results are in the end, and the tables as soon as all tasks have ended; empty: they stay here."""
        self.plan = path / "plan.json"
        self.operations = path / "operations"
        """A directory: the rows of `tools.replay.load.results`."""
        self.tasks = path / "tasks.json"
        """Each task's last report: operations expected and sent, offset of its clock. If one is lost: why, and how much is undone."""
        self.groups = path / "groups"
        """A directory: what each task's consumer groups did, if there were any."""
        self.generator = path / "generator"
        """A directory: when each task's loop stood still, and its CPU time."""
        self.cpu = path / "cpu.json"
        """The CPU time of what runs on the driver's machine."""
        self.faults = path / "faults.json"
        self.found = path / "found"
        """A directory: what the verdict read back."""
        self.verdict = path / "verdict.json"
        self.analysis = path / "analysis.json"
        self.latencies = path / "latencies.parquet"
        """The histograms of the latencies by interval."""
        self.over_time = path / "over_time.csv"
        self.distributions = {op: path / f"{op}.hgrm" for op in ("produce", "fetch")}
        self.comparison = path / "comparison.json"
        """In the directory of a comparison."""
        self.summary = path / "summary.json"
        self.report = path / "report.html"
        self.for_ci = path / "junit.xml", path / "summary.md"
        self.undone = path / "undone"
        """A directory: the operations without a result, if a task was lost."""
        self.access = path / "access.json"
        """Certificates and passwords, from the replay's start until its job reads them."""
        self.scratch = path / "spark-scratch"
        """Spark's temporary files, removed when it stops."""
        self.spark_log = path / "spark.log"

    @property
    def place(self) -> Place:
        return self.uri or self.path

    @property
    def tables(self) -> tuple[Path, ...]:
        """The directories that Spark reads and writes."""
        return self.operations, self.found, self.undone

    @property
    def results(self) -> tuple[Path, ...]:
        """All that a replay leaves, and what it hands to its job."""
        files = (self.plan, self.tasks, self.cpu, self.faults, self.access, self.spark_log, self.verdict, self.analysis)
        pages = (self.latencies, self.over_time, *self.distributions.values(), self.summary, self.report, *self.for_ci)
        return *self.tables, self.groups, self.generator, *files, *pages

    def place_of(self, table: Path) -> Place:
        return inside(self.place, table.name)

    def read_plan(self) -> Plan:
        return Plan(**json.loads(self.plan.read_text()))

    def write_plan(self, plan: Plan) -> None:
        write_json(self.plan, asdict(plan))


def write_json(path: Path, content: Any) -> None:
    """Writes atomically: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_anew(path, json.dumps(content, indent=2) + "\n")
