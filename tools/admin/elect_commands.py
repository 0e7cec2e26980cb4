"""`ottla elect`: leader elections by request, with the option names of Kafka's `kafka-leader-election`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import click

from protocol.types import TopicPartition
from tools.admin.completion import complete_topics
from tools.admin.connection import connect, connection_options, print_json
from tools.admin.input_files import read_file, source_name
from tools.admin.naming import Where
from tools.admin.reassign_plan import PlanError, parse_partitions
from tools.failures import AdminError, errors_in_one_line
from tools.numbers import IntRange
from tools.terminal import echo

NOT_NEEDED = "ELECTION_NOT_NEEDED"
FAILURES_SHOWN_MAX = 3


@click.command()
@click.option(
    "--election-type",
    type=click.Choice(["preferred", "unclean"], case_sensitive=False),
    required=True,
    help="preferred: elect the first replica; unclean: if no in-sync replica is live, elect another (may lose records)",
)
@click.option("--all-topic-partitions", is_flag=True, help="every partition that needs this election")
@click.option("--topic", metavar="TOPIC", help="the topic, with --partition", shell_complete=complete_topics)
@click.option("--partition", type=IntRange(min=0), metavar="P", help="the partition, with --topic")
@click.option(
    "--path-to-json-file",
    "file",
    metavar="FILE",
    help='{"partitions":[{"topic":"orders","partition":0}]}; - is standard input',
)
@connection_options
def elect(
    election_type: str,
    all_topic_partitions: bool,
    topic: str | None,
    partition: int | None,
    file: str | None,
    where: Where,
    output: str,
) -> None:
    """Elect leaders: of one partition, of the partitions in a file, or of every partition that needs it."""
    if (topic is None) != (partition is None):
        raise click.UsageError("--topic and --partition must be used together.")
    if all_topic_partitions + (topic is not None) + (file is not None) != 1:
        raise click.UsageError("use one of --all-topic-partitions, --topic with --partition, --path-to-json-file.")
    with errors_in_one_line():
        partitions = _partitions(topic, partition, file)
        admin = connect(where)
        known = admin.cluster().partitions()
        unknown = [str(asked) for asked in partitions or () if asked not in known]
        if unknown:
            raise AdminError(
                f"partition {', '.join(unknown)} does not exist; `ottla topic describe` shows the partitions"
            )
        found = admin.elect_leaders(unclean=election_type == "unclean", partitions=partitions)
        answers = dict(sorted(found.items()))
        elected = [asked for asked, error in answers.items() if error is None]
        not_needed = [asked for asked, error in answers.items() if error is not None and error[0] == NOT_NEEDED]
        failures = {asked: error for asked, error in answers.items() if error is not None and error[0] != NOT_NEEDED}
        if output == "json":
            print_json(_as_json(elected, not_needed, failures))
        else:
            _echo(election_type, elected, not_needed, failures)
        if failures:
            raise AdminError(_failure_line(failures))


def _partitions(topic: str | None, partition: int | None, file: str | None) -> list[TopicPartition] | None:
    """The partitions to elect for; None means all. Raises AdminError if the file cannot be read."""
    if topic is not None and partition is not None:
        return [TopicPartition(topic, partition)]
    if file is None:
        return None
    try:
        return parse_partitions(read_file(file), source_name(file))
    except PlanError as problem:
        raise AdminError(str(problem)) from None


def _as_json(
    elected: Iterable[TopicPartition],
    not_needed: Iterable[TopicPartition],
    failures: Mapping[TopicPartition, tuple[str, str]],
) -> dict[str, object]:
    return {
        "elected": [partition._asdict() for partition in elected],
        "not_needed": [partition._asdict() for partition in not_needed],
        "failed": [
            {**partition._asdict(), "error": code, "reason": reason} for partition, (code, reason) in failures.items()
        ],
    }


def _echo(
    election_type: str,
    elected: list[TopicPartition],
    not_needed: list[TopicPartition],
    failures: Mapping[TopicPartition, object],
) -> None:
    if elected:
        names = ", ".join(map(str, elected))
        echo(f"Successfully completed leader election ({election_type.upper()}) for partitions {names}")
    if not_needed:
        echo(f"Valid replica already elected for partitions {', '.join(map(str, not_needed))}")
    if not (elected or not_needed or failures):
        echo("No partition needs this election.")


def _failure_line(failures: Mapping[TopicPartition, tuple[str, str]]) -> str:
    reasons = [f"{partition}: {reason.rstrip('.')}" for partition, (_, reason) in failures.items()]
    more = "" if len(reasons) <= FAILURES_SHOWN_MAX else f"; and {len(reasons) - FAILURES_SHOWN_MAX} more"
    return (
        f"no leader could be elected for {len(failures)} partitions: {'; '.join(reasons[:FAILURES_SHOWN_MAX])}{more}; "
        "start a broker that has a replica (`ottla topic describe --unavailable-partitions`)"
    )
