"""`ottla bench cost`: the CPU time of a broker for one request, as plain Python and compiled, in turns in one run."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import psutil
from tqdm import tqdm

from protocol.kafka.api_keys import ApiLevel
from tools.admin.connection import print_json
from tools.bench.closed_loop.load import Load
from tools.bench.closed_loop.topic_load import measure
from tools.bench.compare.clusters import RunningCluster, leader_of, running_ottla
from tools.bench.compare.kafka_comparison_command import BOTH_FORMS, row_keys
from tools.bench.compare.results import COMPILED, OURS
from tools.bench.compare.rounds import FILL_BYTES
from tools.bench.compare.rows import NEWEST_ROWS, ROWS, Row
from tools.cluster import ownership
from tools.failures import errors_in_one_line
from tools.numbers import FloatRange, IntRange, Parsed, setting
from tools.terminal import echo


class Form(NamedTuple):
    is_compiled: bool
    settings: Mapping[str, str]


EVERY_ROW = (*ROWS, *NEWEST_ROWS)
MEASURED = tuple(row for row in EVERY_ROW if isinstance(row.load, Load) and row.load.client == "raw")
NEWEST_LEVEL = {"broker.api.level": ApiLevel.KAFKA_4.value}
"""The level that has the versions of all loads."""
USUAL = [row.key for row in MEASURED if row.key.startswith(("produce-20x1-100b", "fetch-64k"))]
WARM_UP_S = 0.5

Costs = dict[str, dict[str, list[float]]]
"""Row -> form -> microseconds for each request, one number for each round."""


@click.command("cost")
@click.option(
    "--load",
    "rows",
    type=row_keys(EVERY_ROW),
    default=",".join(USUAL),
    show_default=True,
    help=f"Loads, separated by commas: {', '.join(row.key for row in MEASURED)}.",
)
@click.option("--rounds", "count", type=IntRange(1), default=3, show_default=True, help="Rounds of both forms.")
@click.option("--seconds", type=FloatRange(0.1), default=1.0, show_default=True, help="How long a load counts.")
@click.option(
    "--beside",
    "settings",
    type=Parsed("key=value", setting),
    multiple=True,
    help="KEY=VALUE: measure each form with this broker setting, too; may be repeated, for several at once.",
)
@click.option("--plain", "is_plain", is_flag=True, help="Only plain Python, where there is no compiled form.")
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def cost_command(
    rows: Sequence[Row], count: int, seconds: float, settings: Sequence[tuple[str, str]], is_plain: bool, output: str
) -> None:
    """Measure what one request costs the leader of its partition: microseconds of CPU time, the kernel's included.

    The loads are those of `ottla bench compare`, so their versions are those that clients send. Each round starts a cluster of each form,
    in the other order than the round before.
    """
    others = [row.key for row in rows if row not in MEASURED]
    if others:
        raise click.UsageError(
            f"{others[0]} is no load of raw requests: choose from {', '.join(r.key for r in MEASURED)}"
        )
    forms = forms_of({OURS: False} if is_plain else BOTH_FORMS, settings)
    costs: Costs = {row.key: {name: [] for name in forms} for row in rows}
    with errors_in_one_line(), tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        ownership.own_servers()
        with tqdm(total=count * len(forms) * len(rows), disable=None, leave=False, unit="load") as progress:
            for number in range(count):
                for name in list(forms) if number % 2 == 0 else list(forms)[::-1]:
                    form = forms[name]
                    settings_of_all = {**NEWEST_LEVEL, **form.settings}
                    with running_ottla(Path(directory) / "cluster", form.is_compiled, name, settings_of_all) as cluster:
                        for row in rows:
                            assert isinstance(row.load, Load)
                            costs[row.key][name].append(_cost_us(cluster, row.load, seconds))
                            progress.update()
    if output == "json":
        print_json({"bench": "cost", "unit": "us", "costs": costs})
        return
    width = max(len(row.key) for row in rows)
    for row in rows:
        echo(f"{row.key:<{width}}  {'   '.join(_cells(costs[row.key]))}")


def forms_of(forms: Mapping[str, bool], settings: Sequence[tuple[str, str]]) -> dict[str, Form]:
    """Each form, and each with the settings, by the name in the result."""
    found = {name: Form(is_compiled, {}) for name, is_compiled in forms.items()}
    if settings:
        words = ", ".join(f"{key}={value}" for key, value in settings)
        found |= {f"{name}, {words}": Form(is_compiled, dict(settings)) for name, is_compiled in forms.items()}
    return found


def _cost_us(cluster: RunningCluster, load: Load, seconds: float) -> float:
    """One topic with one partition: all requests go to its leader."""
    with cluster.topic(load, FILL_BYTES[load.client]) as topic:
        os.sync()
        leader = cluster.brokers[leader_of(cluster, topic)]
        measure(load, cluster.target, [topic], WARM_UP_S)
        before = _cpu_s(leader)
        found = measure(load, cluster.target, [topic], seconds)
        return (_cpu_s(leader) - before) / found.requests * 1e6


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _cells(of_forms: Mapping[str, Sequence[float]]) -> list[str]:
    """The median of each form with its spread, and the ratio of the two without further settings."""
    cells = [
        f"{_words(name)} {statistics.median(values):6.1f} us ({min(values):.1f}..{max(values):.1f})"
        for name, values in of_forms.items()
    ]
    if COMPILED in of_forms:
        ratios = [one / other for one, other in zip(of_forms[COMPILED], of_forms[OURS], strict=True)]
        cells.append(f"ratio {statistics.median(ratios):.2f}")
    return cells


def _words(name: str) -> str:
    """`compiled, KEY=VALUE` from `ottla, compiled, KEY=VALUE`."""
    return name.removeprefix(f"{OURS}, ") if name.startswith(COMPILED) else f"plain{name.removeprefix(OURS)}"
