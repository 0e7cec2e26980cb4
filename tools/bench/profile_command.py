"""`ottla bench profile`: where a broker spends its time under each load, as flame graphs that py-spy draws."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from tqdm import tqdm

from tools.bench.closed_loop.load import Load
from tools.bench.closed_loop.topic_load import measure
from tools.bench.compare.clusters import RunningCluster, leader_of, running_ottla
from tools.bench.compare.kafka_comparison_command import FORM_HELP, row_keys
from tools.bench.compare.rounds import FILL_BYTES
from tools.bench.compare.rows import ROWS, Row
from tools.cluster import ownership
from tools.cluster.processes import ClusterError
from tools.failures import errors_in_one_line
from tools.numbers import OUTPUT, FloatRange, IntRange

PROFILED = tuple(row for row in ROWS if isinstance(row.load, Load))
WARM_UP_S = 1.0
AROUND_S = 1.0
"""py-spy starts slowly, so the load lasts this much longer than the samples, and then until py-spy has ended."""
LATE_S = 60.0


@click.command("profile")
@click.option(
    "--load",
    "rows",
    type=row_keys(ROWS),
    default=",".join(row.key for row in PROFILED),
    show_default="all",
    help=f"Loads, separated by commas: {', '.join(row.key for row in PROFILED)}.",
)
@click.option(
    "--out",
    type=OUTPUT,
    default="profile.svg",
    show_default=True,
    help="The flame graph. With several loads, the name of each is added to the file's.",
)
@click.option(
    "--broker",
    type=click.Choice(["leader", "follower"]),
    default="leader",
    show_default=True,
    help="Which one to sample.",
)
@click.option("--seconds", type=FloatRange(0.5), default=5.0, show_default=True, help="How long to sample.")
@click.option("--rate", type=IntRange(1, 1000), default=200, show_default=True, help="Samples per second.")
@click.option("--native/--no-native", default=True, show_default=True, help="Also show the functions of C libraries.")
@click.option("--compiled/--plain", default=None, help=FORM_HELP)
def profile_command(
    rows: Sequence[Row], out: Path, broker: str, seconds: float, rate: int, native: bool, compiled: bool | None
) -> None:
    """Draw a flame graph of a broker under each load of `ottla bench compare`.

    It starts three brokers and a ZooKeeper on this machine and samples the leader of a partition under load. The wider a function, the
    more of the broker's processor time it takes. Open the file in a browser.
    """
    tools = [row.key for row in rows if not isinstance(row.load, Load)]
    if tools:
        raise click.UsageError(f"{tools[0]} cannot be profiled: choose from {', '.join(row.key for row in PROFILED)}")
    with errors_in_one_line(), tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        py_spy = find_py_spy()
        ownership.own_servers()
        options = ["--duration", f"{seconds:.0f}", "--rate", str(rate), *(["--native"] if native else [])]
        with running_ottla(Path(directory) / "cluster", compiled) as cluster:
            for row in tqdm(rows, disable=None, leave=False, unit="load"):
                file = out if len(rows) == 1 else out.with_name(f"{out.stem}-{row.key}{out.suffix}")
                _profile(cluster, row, broker, [py_spy, "record", *options], seconds, file)
                click.echo(f"{file}: the {broker} under {row.title}")


def find_py_spy() -> str:
    """The path of py-spy, beside this Python or on the path. Raises ClusterError."""
    found = shutil.which(str(Path(sys.executable).with_name("py-spy"))) or shutil.which("py-spy")
    if found is None:
        raise ClusterError("py-spy, which samples the broker, is not installed: run `pip install 'ottla[profile]'`")
    return found


def _profile(
    cluster: RunningCluster, row: Row, broker: str, command: Sequence[str], seconds: float, file: Path
) -> None:
    load = row.load
    assert isinstance(load, Load)
    if broker == "follower":
        load = replace(load, replication_factor=3)  # without a replica, no follower would have work
    with cluster.topic(load, FILL_BYTES[load.client]) as topic:
        measure(load, cluster.target, [topic], WARM_UP_S)
        leader = leader_of(cluster, topic)
        sampled = leader if broker == "leader" else next(one for one in cluster.brokers if one != leader)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        words = [*command, "--format", "flamegraph", "--pid", str(cluster.brokers[sampled].pid), "--output", str(file)]
        sampler = ownership.start(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            measure(load, cluster.target, [topic], seconds + AROUND_S)
            deadline = time.monotonic() + LATE_S
            while sampler.poll() is None and time.monotonic() < deadline:  # py-spy started late
                measure(load, cluster.target, [topic], AROUND_S)
            said = sampler.communicate(timeout=LATE_S)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            raise ClusterError(f"py-spy has not ended {LATE_S:g} s after the load") from None
        finally:
            sampler.kill()
            sampler.wait()
    if sampler.returncode or not file.exists():
        raise ClusterError(f"py-spy failed: {_reason(said)}")


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reason = next(
        (line for line in lines if "ermission" in line or "rror" in line), (lines or ["it does not say why"])[-1]
    )
    if "ermission" in said:
        reason += " (it needs root, or `sysctl kernel.yama.ptrace_scope=0`)"
    return reason
