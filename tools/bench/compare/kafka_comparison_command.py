"""`ottla bench compare` and `ottla bench floor`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from tqdm import tqdm

from tools.bench.closed_loop.topic_load import Load
from tools.bench.compare import drawing, printing, rounds
from tools.bench.compare.floor import measure_floor
from tools.bench.compare.rows import ROWS, Row, chosen
from tools.bench.real_kafka.jars import find_jars
from tools.cluster.ownership import own_servers
from tools.cluster.tables import aligned
from tools.failures import errors_in_one_line
from tools.numbers import FloatRange, IntRange, Parsed

FLOOR_WARM_UP_S = 0.3


ROW_KEYS = Parsed("row[,row...]", lambda text: chosen([key.strip() for key in text.split(",") if key.strip()]))
"""`fetch-64k,fetch-1m`: keys of rows."""
ROWS_HELP = f"Rows to measure, separated by commas: {', '.join(row.key for row in ROWS)}."
FORM_HELP = "Whether our brokers run compiled. Without it, they run in the form that is there."


@click.command("compare")
@click.option("--peer", type=click.Choice(["kafka"]), default="kafka", show_default=True, help="What to compare with.")
@click.option(
    "--kafka-home",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A Kafka distribution. Without it, Maven fetches the jars of Kafka 3.9.1, once.",
)
@click.option("--rounds", "count", type=IntRange(1), default=3, show_default=True, help="Rounds of both clusters.")
@click.option(
    "--seconds", type=FloatRange(0.1), default=3.0, show_default=True, help="How long a row counts in each round."
)
@click.option(
    "--warm-up", type=FloatRange(0.1), default=1.5, show_default=True, help="Seconds of the same load before each row."
)
@click.option("--rows", type=ROW_KEYS, default="", show_default="all", help=ROWS_HELP)
@click.option("--floor/--no-floor", default=True, show_default=True, help="Also measure what a C server does.")
@click.option("--compiled/--plain", default=None, help=FORM_HELP)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="All figures."
)
@click.option(
    "--markdown", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="The table for a page."
)
@click.option("--svg", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="The ratios as a drawing.")
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def compare_command(
    peer: str,
    kafka_home: Path | None,
    count: int,
    seconds: float,
    warm_up: float,
    rows: Sequence[Row],
    floor: bool,
    compiled: bool | None,
    json_file: Path | None,
    markdown: Path | None,
    svg: Path | None,
    output: str,
) -> None:
    """Run the same loads on our cluster and on a real Kafka, one after the other, and print the ratios.

    Each has three brokers and a ZooKeeper on this machine, and the same settings. Each round starts both anew, in the other order than
    the round before. All rows take about eleven minutes.
    """
    _ = peer
    with errors_in_one_line(), tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        jars = find_jars(kafka_home)
        own_servers()
        wanted = rounds.Rounds(rows, count, seconds, warm_up, compiled, floor)
        with tqdm(total=wanted.steps, disable=None, leave=False, unit="row") as bar:

            def say(what: str) -> None:
                bar.set_description(what)
                bar.update()

            comparison = rounds.run(Path(directory), jars, wanted, say)
    found = json.dumps(printing.as_json(comparison), indent=1)
    for file, content in (
        (json_file, found + "\n"),
        (markdown, printing.markdown(comparison)),
        (svg, drawing.svg(comparison)),
    ):
        if file is not None:
            file.write_text(content, encoding="utf-8")
    click.echo(found if output == "json" else printing.text(comparison))


@click.command("floor")
@click.option("--rows", type=ROW_KEYS, default="", show_default="all", help=ROWS_HELP)
@click.option("--seconds", type=FloatRange(0.1), default=1.0, show_default=True, help="How long a row counts.")
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def floor_command(rows: Sequence[Row], seconds: float, output: str) -> None:
    """Measure what this machine does at best: a C server that answers the same frames from the same clients.

    Once it answers only; once it also writes each frame to the page cache. The answers of fetches leave by sendfile. Nothing is
    replicated.
    """
    found = {}
    with errors_in_one_line(), tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        own_servers()
        for row in tqdm([row for row in rows if isinstance(row.load, Load)], disable=None, leave=False, unit="row"):
            floor = measure_floor(Path(directory), row, seconds, FLOOR_WARM_UP_S)
            if floor is not None:
                found[row] = floor
    if output == "json":
        click.echo(json.dumps([{"key": row.key, "unit": row.unit, **asdict(floor)} for row, floor in found.items()]))
        return
    table = [["LOAD", "ANSWERED", "WRITTEN TOO"]]
    for row, floor in found.items():
        stored = printing.NONE if floor.stored is None else printing.amount(floor.stored, row.unit)
        table.append([row.title, printing.amount(floor.echo, row.unit), stored])
    click.echo("\n".join(aligned(table)))
