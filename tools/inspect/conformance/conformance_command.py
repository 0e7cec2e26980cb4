"""`ottla inspect conformance`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click
import yaml

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiLevel
from protocol.numbers import is_plain_number
from protocol.plain_text import escaped
from protocol.types import Address
from tools.failures import AdminError, said_of
from tools.inspect.conformance.known import BadKnownDifferences, Known, parse_known
from tools.inspect.conformance.report import Sorted, difference_json, difference_lines, sort_out
from tools.inspect.conformance.requests import requests
from tools.inspect.conformance.run import Comparison, compare_clusters
from tools.inspect.conformance.sequences import HISTORIES
from tools.numbers import EXISTING_FILE, OUTPUT, IntRange
from tools.terminal import echo, echo_lines
from tools.yaml_nodes import not_yaml

KNOWN_DIFFERENCES = Path(__file__).with_name("known_differences.yaml")
OF_LEVEL_4 = Path(__file__).with_name("known_differences_4.yaml")
"""Those that come at level 4 beside the others."""
DIFFERENT, FAILED = 1, 2


@click.command()
@click.option("--reference", required=True, metavar="HOST:PORT", help="a broker that is right, such as a Kafka 4.1")
@click.option("--subject", required=True, metavar="HOST:PORT", help="the broker to compare with it")
@click.option(
    "--api", "apis", multiple=True, metavar="NAME", help="only this API, such as ListOffsets; may be repeated"
)
@click.option(
    "--history", "histories", multiple=True, metavar="NAME", help="only this history, such as group; may be repeated"
)
@click.option(
    "--seed", type=IntRange(min=0), default=1, show_default=True, help="draws the requests that are odd twice"
)
@click.option("--quick", is_flag=True, help="only the newest version of each API")
@click.option(
    "--level",
    type=click.Choice([level.value for level in ApiLevel]),
    default=ApiLevel.KAFKA_4.value,
    show_default=True,
    help="whose differences are known: 3.9, those between Kafka 3.9 and ottla; 4, those between Kafka 4.1 and ottla at level 4",
)
@click.option(
    "--known",
    type=EXISTING_FILE,
    metavar="FILE",
    help="differences that are not reported, in the place of those of the level",
)
@click.option("--all", "show_all", is_flag=True, help="report known differences, too")
@click.option("--json", "output", type=OUTPUT, metavar="OUT", help="write a JSON file, too")
def conformance(
    reference: str,
    subject: str,
    apis: tuple[str, ...],
    histories: tuple[str, ...],
    seed: int,
    quick: bool,
    level: str,
    known: Path | None,
    show_all: bool,
    output: Path | None,
) -> None:
    """Send the same requests to two brokers, and print how their answers differ.

    The requests are well-formed, odd and broken ones of every API and version that both advertise, and histories of topics,
    groups and producers. They change only topics and groups that the command makes, and deletes at the end.

    The exit code is 0 if all differences are known, 1 if there are others, and 2 if the comparison of an API or a
    history was not possible.
    """
    try:
        entries = known_at(ApiLevel(level)) if known is None else read_known(known)
        is_all = not apis and not histories
        chosen = None if is_all else _keys(apis)
        played = HISTORIES if is_all else _histories(histories)
        result = asyncio.run(
            compare_clusters(
                _address(reference), _address(subject), seed, chosen, list(played), entries, is_quick=quick
            )
        )
    except AdminError as problem:
        echo(f"Error: {escaped(str(problem))}", err=True)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        echo("Interrupted; topics and groups named conform-... may be left.", err=True)
        sys.exit(130)
    sorted_out = sort_out(result.found, entries)
    if output is not None:
        output.write_text(json.dumps(report_json(result, sorted_out, seed), indent=1, default=str) + "\n")
    echo_lines(difference_lines(result.found if show_all else sorted_out.other))
    echo_lines(summary_lines(result, sorted_out))
    for failure in result.failed:
        echo(f"Error: {escaped(failure)}", err=True)
    if result.failed:
        sys.exit(FAILED)
    if sorted_out.other:
        sys.exit(DIFFERENT)


def known_at(level: ApiLevel) -> tuple[Known, ...]:
    """The differences that stay at this level."""
    newer = read_known(OF_LEVEL_4) if level is ApiLevel.KAFKA_4 else ()
    return read_known(KNOWN_DIFFERENCES) + newer


def read_known(path: Path) -> tuple[Known, ...]:
    """Raises AdminError."""
    try:
        return parse_known(yaml.safe_load(path.read_text(encoding="utf-8")))
    except UnicodeDecodeError:
        raise AdminError(f"--known {path} is not UTF-8") from None
    except yaml.YAMLError as error:
        raise AdminError(f"--known {path}{not_yaml(error)}") from None
    except OSError as error:
        raise AdminError(f"--known {said_of(error)}") from None
    except BadKnownDifferences as error:
        raise AdminError(f"--known {path}: {error}") from None


def report_json(result: Comparison, sorted_out: Sorted, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "requests": result.requests,
        "apis": result.apis,
        "versions": result.versions,
        "left_out": result.left_out,
        "failed": result.failed,
        "differences": difference_json(sorted_out.other),
        "known_differences": difference_json(sorted_out.known),
        "known_that_did_not_occur": [entry.differs for entry in sorted_out.unused],
    }


def summary_lines(result: Comparison, sorted_out: Sorted) -> list[str]:
    other, known = len(difference_json(sorted_out.other)), len(difference_json(sorted_out.known))
    return [
        *([""] if sorted_out.other else []),
        *result.left_out,
        f"{result.requests} requests to each broker, {result.apis} APIs in {result.versions} versions.",
        f"{other} difference{'' if other == 1 else 's'}, and {known} known.",
    ]


def _address(text: str) -> Address:
    host, separator, port = text.strip().rpartition(":")
    if not separator or not host or not is_plain_number(port):
        raise AdminError(f"{text}: expected host:port")
    return host.strip("[]"), int(port)


def _keys(names: tuple[str, ...]) -> list[int]:
    by_name = {messages.api_name(key).lower(): int(key) for key in requests()}
    unknown = [name for name in names if name.lower() not in by_name]
    if unknown:
        raise AdminError(f"--api {unknown[0]}: no such API; expected a name such as ListOffsets")
    return [by_name[name.lower()] for name in names]


def _histories(names: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [name for name in names if name not in HISTORIES]
    if unknown:
        raise AdminError(f"--history {unknown[0]}: no such history; expected one of {', '.join(HISTORIES)}")
    return names
