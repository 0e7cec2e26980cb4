"""`ottla bench compare`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from tqdm import tqdm

from tools.bench.compare import drawing, printing, rounds
from tools.bench.compare.results import COMPILED, OURS
from tools.bench.compare.rows import ROWS, Row, chosen
from tools.bench.real_kafka.jars import find_jars
from tools.cluster.ownership import own_servers
from tools.failures import errors_in_one_line
from tools.numbers import OUTPUT, FloatRange, IntRange, Parsed


def row_keys(rows: Sequence[Row]) -> Parsed:
    """`fetch-64k,fetch-1m`: keys of rows."""
    return Parsed("row[,row...]", lambda text: chosen([key.strip() for key in text.split(",") if key.strip()], rows))


ROWS_HELP = f"Rows to measure, separated by commas: {', '.join(row.key for row in ROWS)}."
FORM_HELP = "Whether our brokers run compiled. Without it, they run in the form that is there."
BOTH_FORMS = {OURS: False, COMPILED: True}


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
@click.option("--rows", type=row_keys(ROWS), default="", show_default="all", help=ROWS_HELP)
@click.option("--compiled/--plain", default=None, help=FORM_HELP)
@click.option("--both", is_flag=True, help="Our brokers as plain Python, and compiled too, as a third cluster.")
@click.option("--json", "json_file", type=OUTPUT, help="All figures.")
@click.option(
    "--markdown", type=OUTPUT, help="The table for a page; if it is docs/PERFORMANCE.md, in the place of its table."
)
@click.option("--svg", type=OUTPUT, help="The ratios as a drawing.")
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def compare_command(
    peer: str,
    kafka_home: Path | None,
    count: int,
    seconds: float,
    warm_up: float,
    rows: Sequence[Row],
    compiled: bool | None,
    both: bool,
    json_file: Path | None,
    markdown: Path | None,
    svg: Path | None,
    output: str,
) -> None:
    """Run the same loads on our cluster and on a real Kafka, one after the other, and print the ratios.

    Each has three brokers and a ZooKeeper on this machine, and the same settings. Each round starts all anew, in the other order than
    the round before. All rows take about a quarter of an hour, with both forms about 25 minutes.
    """
    _ = peer
    with errors_in_one_line(), tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        jars = find_jars(kafka_home)
        own_servers()
        wanted = rounds.Rounds(rows, count, seconds, warm_up, BOTH_FORMS if both else {OURS: compiled})
        with tqdm(total=wanted.steps, disable=None, leave=False, unit="row") as bar:

            def say(what: str) -> None:
                bar.set_description(what)
                bar.update()

            comparison = rounds.run(Path(directory), jars, wanted, say)
    found = json.dumps(printing.as_json(comparison), indent=1)
    if json_file is not None:
        json_file.write_text(found + "\n", encoding="utf-8")
    if markdown is not None:
        printing.write_into(markdown, printing.markdown(comparison))
    if svg is not None:
        svg.write_text(drawing.svg(comparison), encoding="utf-8")
    click.echo(found if output == "json" else printing.text(comparison))
