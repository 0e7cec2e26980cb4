"""One replay, from its checks to its report, against any Kafka-compatible cluster."""

from __future__ import annotations

import json
import shutil
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import click
import pyarrow.parquet
from confluent_kafka import KafkaException
from tqdm import tqdm

from tools.admin.failures import AdminError
from tools.admin.kafka_admin import KafkaAdmin
from tools.replay.clients import ReplayError, end_offsets, new_consumer
from tools.replay.group_analysis import ProducedEvent, analyse_group
from tools.replay.group_reader import GroupReader, read_group
from tools.replay.plan import OutputDirectory, Plan, write_json
from tools.replay.progress import ProgressListener, TaskProgress
from tools.replay.spark import SparkJob
from tools.replay.summary import summary_lines, summary_of
from tools.replay.trace import TraceSummary, moment, summarize

PRODUCERS = 2
READERS = 2
ANSWER_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 30.0
LISTEN_S = 0.2
REDRAW_S = 0.2
LINE_EVERY_PERCENT = 20
LEADER_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a replay."""

    bootstrap_servers: str
    topic: str


class Replay:
    """A replay that has been checked and is ready to run."""

    def __init__(
        self,
        target: Target,
        trace: Path,
        output: OutputDirectory,
        speed: float,
        producers: int = PRODUCERS,
        readers: int = READERS,
    ) -> None:
        """Checks trace, address and topic, and reads the ends of the partitions. Raises TraceError, ReplayError."""
        if not speed > 0 or speed == float("inf"):
            raise ReplayError(f"speed {speed} must be a number above 0; 1 is real time, 60 is a minute per second")
        self.summary: TraceSummary = summarize(trace)
        self.output = output
        self._listener = ProgressListener()
        self.job = SparkJob("replay", output)
        self.plan = Plan(
            run=uuid.uuid4().hex[:12],
            trace=str(trace.absolute()),
            directory=str(output.path.absolute()),
            bootstrap_servers=target.bootstrap_servers,
            topic=target.topic,
            start_offsets=ends_of_topic(target),
            first_time_us=self.summary.first_time_us,
            last_time_us=self.summary.last_time_us,
            speed=speed,
            producers=producers,
            readers=readers,
            answer_timeout_s=ANSWER_TIMEOUT_S,
            read_timeout_s=READ_TIMEOUT_S,
            read_everything=self.summary.fetches == 0,
            progress_address=self._listener.address,
        )

    def run(self, during: Callable[[float], None] = lambda _: None, group: GroupReader | None = None) -> dict[str, Any]:
        """Runs it, draws the bar, and calls `during` with the seconds since its start; `group` reads along. Returns the
        analysis; the output directory then has all files. The caller must stop `job` and `group` in any case, also after an
        interrupt."""
        clear_results(self.output)
        self.output.write_plan(self.plan)
        self.output.write_faults([])
        if group is not None:
            group.start()
        click.echo("Starting Spark ...")
        self.job.start()
        with self._listener, ProgressBar(self) as bar:
            self.job.wait(lambda: self._step(bar, self._listener.receive(LISTEN_S), during))
        if group is not None:
            group.finish()
        return finish(self.output)

    def _step(self, bar: ProgressBar, totals: TaskProgress, during: Callable[[float], None]) -> None:
        elapsed_s = time.time() - totals.started
        if totals.started and elapsed_s >= 0:
            during(elapsed_s)
            bar.show(totals, elapsed_s)


def ends_of_topic(target: Target) -> list[int]:
    """The end of each partition, as soon as each has a leader. Raises ReplayError if the cluster or topic does not exist."""
    try:
        partition_counts = KafkaAdmin(target.bootstrap_servers).cluster().partition_counts
    except AdminError as problem:
        raise ReplayError(str(problem)) from None
    if target.topic not in partition_counts:
        raise ReplayError(
            f"topic {target.topic!r} does not exist at {target.bootstrap_servers}; create it with "
            f"`ottla topic create {target.topic} --partitions 6 --replication-factor 3`, or use another --topic"
        )
    consumer = new_consumer(target.bootstrap_servers)
    deadline = time.monotonic() + LEADER_TIMEOUT_S
    try:
        while True:
            try:
                ends = end_offsets(consumer, target.topic, range(partition_counts[target.topic]))
                return [ends[partition] for partition in sorted(ends)]
            except KafkaException as problem:
                if time.monotonic() > deadline:
                    raise ReplayError(
                        f"topic {target.topic!r} has a partition that does not answer: {problem}"
                    ) from None
    finally:
        consumer.close()


def clear_results(output: OutputDirectory) -> None:
    """Removes the files of an earlier replay, so that nobody mistakes them for this one's."""
    output.path.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(output.operations, ignore_errors=True)
    files = (output.plan, output.faults, output.group, output.group_reads, output.analysis)
    for path in (*files, output.summary, output.report, output.spark_log):
        path.unlink(missing_ok=True)


class ProgressBar:
    """Shows a replay's progress: a bar on a terminal, occasional lines elsewhere."""

    def __init__(self, replay: Replay) -> None:
        self._plan = replay.plan
        self._events = replay.summary.produces
        self._line_at = LINE_EVERY_PERCENT
        self._terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=self._events,
            desc="replay",
            dynamic_ncols=True,
            disable=not self._terminal,
            mininterval=REDRAW_S,
            miniters=0,
            bar_format="{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} acknowledged [{elapsed}]{postfix}",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def show(self, totals: TaskProgress, elapsed_s: float) -> None:
        """`totals` over all tasks, `elapsed_s` since the common start."""
        answered = totals.acknowledged + totals.failed
        note = self._note(totals, elapsed_s)
        if self._terminal:
            self._bar.n = answered
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(0)
        elif answered * 100 >= self._line_at * self._events:
            self._line_at = (
                answered * 100 // self._events // LINE_EVERY_PERCENT * LINE_EVERY_PERCENT + LINE_EVERY_PERCENT
            )
            click.echo(f"  {answered * 100 // self._events:3d} %  {totals.acknowledged:,} acknowledged, {note}")

    def _note(self, totals: TaskProgress, elapsed_s: float) -> str:
        reached = min(self._plan.first_time_us + int(elapsed_s * self._plan.speed * 1e6), self._plan.last_time_us)
        note = f"{totals.read:,} read, {moment(reached):%b %d %H:%M} UTC"
        done = elapsed_s > self._plan.duration_s and totals.read >= totals.acknowledged >= self._events
        return f"{note}; analysing" if done else note


def analyse_again(output: OutputDirectory) -> dict[str, Any]:
    """Analyses an earlier replay's operations again and rewrites its summary and report."""
    if not (output.plan.exists() and output.operations.exists()):
        raise ReplayError(f"{output.path} has no replay (plan.json and operations.parquet); see `ottla replay run`")
    job = SparkJob("analyse", output)
    try:
        job.start()
        job.wait(lambda: time.sleep(LISTEN_S))
    finally:
        job.stop()
    return finish(output)


def finish(output: OutputDirectory) -> dict[str, Any]:
    """Writes summary and report from the analysis on disk."""
    from tools.replay.report import write_report

    analysis: dict[str, Any] = json.loads(output.analysis.read_text())
    if (found := read_group(output)) is not None:
        facts, reads = found
        events = acknowledged_events(output)
        analysis["group"] = analyse_group(facts, reads, events, output.read_faults(), analysis["began"])
    write_json(output.summary, summary_of(analysis))
    write_report(output.report, analysis)
    return analysis


def acknowledged_events(output: OutputDirectory) -> list[ProducedEvent]:
    """The events in the operations that the Spark job wrote."""
    columns = ["event_id", "partition", "scheduled"]
    produced = [("op", "=", "produce")]
    found = pyarrow.parquet.read_table(output.operations, columns=[*columns, "error"], filters=produced).to_pydict()
    rows = zip(*(found[name] for name in columns), found["error"], strict=True)
    return [ProducedEvent(*event) for *event, error in rows if error is None]


def print_summary(analysis: dict[str, Any], output: OutputDirectory) -> None:
    click.echo("\nMeasured:")
    for line in summary_lines(analysis):
        click.echo(f"  {line}")
    click.echo(f"\nReport   {output.report}\nSummary  {output.summary}")


def exit_code(analysis: dict[str, Any]) -> int:
    """1 if an acknowledged event was lost, an event is in the log twice, the group skipped one, or nothing was
    acknowledged at all."""
    counts = analysis["totals"]
    skipped = analysis["group"]["skipped"] if "group" in analysis else 0
    return 1 if counts["lost"] or counts["duplicated"] or skipped or not counts["acknowledged"] else 0
