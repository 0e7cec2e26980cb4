"""`ottla verify run`: the options, and what is printed."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protocol.kafka.api_keys import ApiLevel
from protocol.plain_text import escaped
from tools.admin.bootstrap import checked
from tools.admin.naming import (
    bootstrap_option,
    client_properties_of,
    command_config_option,
    compose_option,
    default_config,
    directory_option,
    fault_command_option,
)
from tools.failures import ExpectedError, said_of
from tools.group_protocols import CLASSIC, CONSUMER, GROUP_PROTOCOLS
from tools.judge.kinds import HARMLESS, KINDS
from tools.judge.ownership import UNOWNED_S
from tools.numbers import DIRECTORY, FILE, OUTPUT, FloatRange, IntRange, Parsed, setting
from tools.terminal import echo

if TYPE_CHECKING:
    from tools.faults.cluster import Cluster
    from tools.faults.script import ScriptedFault
    from tools.judge.verdict import Verdict
    from tools.verify.report_card import Row
    from tools.wire.security import Security

AFTER_THE_LAST_FAULT_S = 15.0
WITHOUT_FAULTS_S = 30.0
PAUSE_S = (3.0, 6.0)
"""The time between two random faults: long enough for clients to recover, so that each fault has its own outage."""
COULD_NOT_RUN = 2
API_LEVEL = "broker.api.level"
INTERRUPTED = "the run was interrupted before"
REPLICATION_FACTOR = 3


class CouldNotRun(click.ClickException):
    """One line; the exit code is that of a usage error."""

    exit_code = COULD_NOT_RUN


def new_topic(text: str) -> tuple[str, int, int | None]:
    """`orders`, `orders:6`, `orders:6:3`. Becomes (name, partitions, replicas or None). Raises ValueError."""
    name, *numbers = text.split(":")
    if not name or len(numbers) > 2:
        raise ValueError(f"{text!r} is not NAME[:PARTITIONS[:REPLICAS]]")
    counts = [IntRange(1, 100_000).convert(number, None, None) for number in numbers]
    return name, counts[0] if counts else 1, counts[1] if len(counts) > 1 else None


@click.group()
def verify() -> None:
    """Judge a program of yours: what became of its records while brokers failed."""


@verify.command("run", context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@directory_option(
    "The run directory of the local cluster that is used. [default: a cluster of its own, removed at the end]"
)
@compose_option("The Compose project of the cluster, or its directory.")
@bootstrap_option("Any other cluster.")
@fault_command_option("Carries faults out in any other cluster: called as PROGRAM ACTION BROKER-ID HOST PORT.")
@click.option(
    "--links",
    type=DIRECTORY,
    metavar="DIR",
    help="The cluster behind the `ottla links` of this directory, for faults in single requests.",
)
@command_config_option("Properties file with client settings (TLS, SASL), for reading back and for ottla's load.")
@click.option("--brokers", type=IntRange(1, 100), default=3, show_default=True, help="Of a cluster of its own.")
@click.option(
    "--as",
    "api_level",
    type=click.Choice([level.value for level in ApiLevel]),
    help="Whose APIs a cluster of its own has for clients: those of Kafka 3.9 or of Kafka 4. [default: 4]",
)
@click.option("--secure", is_flag=True, help="A cluster of its own has TLS, users who log in, and ACLs.")
@click.option(
    "--override",
    "overrides",
    type=Parsed("key=value", setting),
    multiple=True,
    help="KEY=VALUE: of a cluster of its own.",
)
@click.option(
    "--topic",
    "topics",
    type=Parsed("topic", new_topic),
    multiple=True,
    help="NAME[:PARTITIONS[:REPLICAS]]: created before the program starts, unless it exists.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    help="Such as 'kill leader of orders-0 at 10s', 'restart it at 20s'; times count from the program's first report.",
)
@click.option("--faults", "scenario", type=FILE, metavar="FILE", help="A scenario, as of `ottla fault run`.")
@click.option(
    "--random-faults",
    type=IntRange(1, 10_000),
    metavar="COUNT",
    help="Draw so many faults, of all kinds that the cluster can have, each undone before the next.",
)
@click.option(
    "--seed", type=IntRange(), help="The seed of --random-faults. [default: another one each time; it is printed]"
)
@click.option(
    "--recipe",
    "recipes",
    multiple=True,
    metavar="NAME",
    help="A failure that clients must survive, or `all`; the program runs once for each. docs/FAULTS.md has them.",
)
@click.option(
    "--seconds",
    type=FloatRange(min=1),
    help="The program gets SIGTERM after that time. [default: 15 s after the last fault; 30 s without faults]",
)
@click.option(
    "--grace",
    "grace_s",
    type=FloatRange(min=0),
    default=15.0,
    show_default=True,
    help="Seconds from SIGTERM to SIGKILL.",
)
@click.option(
    "--id",
    "id_from",
    default="key",
    show_default=True,
    help="Where records have the id that reports name: key, value, header:NAME, value:FIELD (JSON).",
)
@click.option(
    "--allow",
    "allowed",
    type=click.Choice(list(KINDS)),
    multiple=True,
    metavar="KIND",
    help=f"No failure: one of {', '.join(kind for kind in KINDS if kind not in HARMLESS)}.",
)
@click.option(
    "--forbid",
    "forbidden",
    type=click.Choice(list(KINDS)),
    multiple=True,
    metavar="KIND",
    help=f"A failure, too: one of {', '.join(kind for kind in KINDS if kind in HARMLESS)}.",
)
@click.option(
    "--unowned-after",
    "unowned_s",
    type=FloatRange(min=0),
    default=UNOWNED_S,
    show_default=True,
    help="Seconds that a partition may belong to no member of a group, as members report: a session time-out.",
)
@click.option("--no-load", is_flag=True, help="Without ottla's own load beside the program.")
@click.option(
    "--group-protocol",
    type=click.Choice(GROUP_PROTOCOLS),
    default=CLASSIC,
    show_default=True,
    help="Of the group of ottla's own load, as Kafka's group.protocol; `consumer` is that of KIP-848.",
)
@click.option("--json", "json_file", type=OUTPUT, help="Write the verdict, or the report card, as JSON.")
@click.option("--junit", "junit_file", type=OUTPUT, help="Write JUnit XML.")
@click.option("--markdown", "markdown_file", type=OUTPUT, help="Write Markdown, as for the summary of a CI.")
@click.option("--html", "html_file", type=OUTPUT, help="Write a page.")
def run(**given: Any) -> None:
    """Start COMMAND with BOOTSTRAP_SERVERS in its environment, cause faults, and judge what it reported.

    With a cluster that is secured, $OTTLA_SECURITY is the directory with the settings of its users, such as alice/python.json.

    It reports by lines on its standard output or in the file $OTTLA_REPORT, such as `@ottla acked topic=orders partition=0 offset=17
    id=a1`: see docs/VERIFY.md. Beside it runs a load of ottla's own, which judges the cluster.

    \b
    Exit code 0: nothing was found. 1: something was lost, duplicated, ... 2: usage, or the run is incomplete.
    Ctrl-C stops the program, heals the cluster, and judges what was done.
    """
    options = Options(**given)
    guarded(lambda started: verified(options, started))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `ottla verify run` was given; each option says in its help what it is."""

    command: Sequence[str]
    directory: Path | None
    project: str | None
    links: Path | None
    bootstrap_server: str | None
    fault_command: str | None
    command_config: Path | None
    brokers: int
    api_level: str | None
    secure: bool
    overrides: Sequence[tuple[str, str]]
    topics: Sequence[tuple[str, int, int | None]]
    faults: Sequence[str]
    scenario: Path | None
    random_faults: int | None
    seed: int | None
    recipes: Sequence[str]
    seconds: float | None
    grace_s: float
    id_from: str
    allowed: Sequence[str]
    forbidden: Sequence[str]
    unowned_s: float
    no_load: bool
    group_protocol: str
    json_file: Path | None
    junit_file: Path | None
    markdown_file: Path | None
    html_file: Path | None

    @property
    def names_a_cluster(self) -> bool:
        return any(each is not None for each in (self.directory, self.project, self.bootstrap_server, self.links))


def verified(options: Options, started: ExitStack) -> int:
    """Runs, and prints the verdict, or the report card of the recipes; returns its exit code."""
    from tools.judge.lines import lines_of
    from tools.verify import page
    from tools.verify.markdown import verdict_markdown

    if options.recipes:
        check_recipes(options)
        return recipes_run(options)

    verdict, _ = judged(options, started)
    command = shlex.join(options.command)
    write(
        (options.json_file, lambda: json.dumps({"command": command, **verdict.to_json()}, indent=2) + "\n"),
        (options.junit_file, lambda: page.junit_of(verdict)),
        (options.markdown_file, lambda: verdict_markdown(verdict, command)),
        (options.html_file, lambda: page.page_of(verdict, command)),
    )
    echo()
    for line in lines_of(verdict):
        echo(line)
    return verdict.exit_code


def judged(options: Options, started: ExitStack) -> tuple[Verdict, Cluster | None]:
    """Checks the options before anything is started, and runs. The cluster lives until `started` closes."""
    from ottla.records import BadId, id_finder
    from tools.verify.run import Asked
    from tools.verify.run import verify as run_verify
    from tools.wire.client_properties import read_security

    command = options.command
    if options.no_load and not command:
        raise click.UsageError("without a COMMAND, only ottla's load runs: --no-load leaves nothing to judge")
    if options.no_load and options.group_protocol == CONSUMER:
        raise click.UsageError("--group-protocol is for ottla's own load, which --no-load and --recipe leave out")
    if command and shutil.which(command[0]) is None:
        raise CouldNotRun(f"{escaped(command[0])}: there is no such program, or it is not executable")
    try:
        id_of = id_finder(options.id_from)
    except BadId as problem:
        raise click.BadParameter(str(problem), param_hint="--id") from None
    if options.seed is not None and options.random_faults is None:
        raise click.UsageError("--seed is for --random-faults")
    scripted = scheduled(options.faults, options.scenario)
    security = read_security(options.command_config, ignores_others=True)  # its errors name the line
    check_times(scripted, options.seconds)
    cluster = cluster_of(options, scripted, started)
    settings = settings_of(options, cluster)
    if options.bootstrap_server is not None:
        servers = checked(options.bootstrap_server, "--bootstrap-server")
    else:
        servers = cluster.bootstrap_servers if cluster is not None else ""
    if cluster is None and (scripted or options.random_faults):
        raise click.UsageError("--bootstrap-server: faults need --fault-command, which says how to harm its brokers")
    echo(f"Cluster: {servers}")
    if cluster is not None:
        check_possible(scripted, cluster)
        if options.random_faults is not None:
            partitions = [f"{name}-{number}" for name, count, _ in options.topics for number in range(count)]
            scripted = in_order([*scripted, *drawn(options.random_faults, options.seed, partitions, cluster)])
            check_times(scripted, options.seconds)
    end_s = options.seconds or (max(map(end_of, scripted)) + AFTER_THE_LAST_FAULT_S if scripted else WITHOUT_FAULTS_S)
    if options.command_config is None and cluster is not None:
        security = cluster.security
    if options.group_protocol == CONSUMER:
        check_consumer_protocol(servers, security)
    create_topics(servers, settings, options.topics)
    asked = Asked(
        command=command,
        seconds=end_s,
        faults=scripted,
        id_of=id_of,
        grace_s=options.grace_s,
        has_load=not options.no_load,
        client_settings=settings,
        security=security,
        environment=environment_of(cluster),
        topics=[name for name, _, _ in options.topics],
        allowed=frozenset(options.allowed),
        forbidden=frozenset(options.forbidden),
        unowned_s=options.unowned_s,
        group_protocol=options.group_protocol,
    )
    return run_verify(asked, servers, cluster, echo, pass_through), cluster


def check_consumer_protocol(servers: str, security: Security) -> None:
    """Raises CouldNotRun if the cluster has no groups of that protocol. Raises Unreachable."""
    import asyncio

    from tools.admin.bootstrap import addresses_of
    from tools.wire.client import Client
    from tools.wire.cluster_view import ClusterView
    from tools.wire.consumer_member import why_no_consumer_protocol

    view = ClusterView(Client("ottla-verify", security), addresses_of(servers), [])
    if problem := asyncio.run(why_no_consumer_protocol(view)):
        raise CouldNotRun(f"--group-protocol {CONSUMER}: {problem}")


def check_recipes(options: Options) -> None:
    """Raises UsageError, NoSuchRecipe."""
    from tools.verify.recipes import chosen

    chosen(options.recipes)
    if not options.command:
        raise click.UsageError("--recipe judges a COMMAND")
    if not options.topics:
        raise click.UsageError("--recipe needs --topic NAME, the topic that the program writes to")
    others = (options.faults, options.scenario, options.random_faults, options.seconds)
    if any(others):
        raise click.UsageError(
            "--recipe has its own faults and times: leave --fault, --faults, --random-faults and --seconds out"
        )
    if options.html_file:
        raise click.UsageError("--html is for one run, and --recipe makes several: --markdown has a page of all")
    if options.project or options.bootstrap_server or (options.fault_command and options.links is None):
        raise click.UsageError(
            "--recipe needs a cluster whose requests can be broken: its own, that of --dir, or any Kafka behind --links"
        )


def recipes_run(options: Options) -> int:
    """Runs the program once for each recipe, each on a cluster of its own unless an option names one, and prints its report card.

    Without ottla's load, whose requests would be hit, too. After a Ctrl-C, no other recipe begins.
    """
    from tools.faults.clusters import find_target
    from tools.verify import report_card
    from tools.verify.markdown import card_markdown
    from tools.verify.recipes import RECIPES, chosen

    topic = options.topics[0][0]
    named = find_target(options.directory, None, options.fault_command, None, options.links)
    rows: list[Row] = []
    for name in chosen(options.recipes):
        recipe = RECIPES[name]
        echo(f"{name}: {recipe.what}")
        is_over = any(row.verdict is not None and row.verdict.is_interrupted for row in rows)
        reason = INTERRUPTED if is_over else recipe.why_impossible(topic, named) if named is not None else None
        try:
            row = report_card.Row(name, None, not_tried=reason) if reason is not None else recipe_run(name, options)
        except ExpectedError as problem:
            if all(earlier.verdict is None for earlier in rows):
                raise  # it would be the same for all
            row = report_card.Row(name, None, problem=str(problem))
        rows.append(row)
        echo(f"{name}: {row.words}")
        echo()
    for line in report_card.card_lines(rows):
        echo(line)
    command = shlex.join(options.command)
    write(
        (options.json_file, lambda: report_card.card_json(rows, command)),
        (options.junit_file, lambda: report_card.card_junit(rows)),
        (options.markdown_file, lambda: card_markdown(rows, command)),
    )
    return report_card.exit_code(rows)


def recipe_run(name: str, options: Options) -> Row:
    """Raises ExpectedError, UsageError, CouldNotRun."""
    from tools.faults.request_hits import request_hits
    from tools.interrupts import ignore_from_now, interruptible
    from tools.verify.recipes import RECIPES
    from tools.verify.report_card import Row

    recipe, topic = RECIPES[name], options.topics[0][0]
    given = replace(options, recipes=(), faults=recipe.faults(topic), seconds=recipe.seconds(topic), no_load=True)
    began_ms = time.time() * 1000
    with interruptible(), ExitStack() as started:
        try:
            verdict, cluster = judged(given, started)
            hits = request_hits(logs_of(cluster), began_ms).total()
            return Row(name, verdict, hits if recipe.has_rules else None)
        finally:
            ignore_from_now()  # until this recipe is cleaned up


def logs_of(cluster: Cluster | None) -> Path:
    """The directory where brokers, or links, write what their rules hit."""
    from tools.faults.processes import ProcessCluster
    from tools.faults.proxied import ProxiedCluster

    assert isinstance(cluster, ProcessCluster | ProxiedCluster)
    return cluster.directory if isinstance(cluster, ProxiedCluster) else cluster.cluster.directory


def cluster_of(options: Options, faults: Sequence[ScriptedFault], started: ExitStack) -> Cluster | None:
    """The cluster of the options, or a new one; None if faults cannot hit it. Raises ClusterError, UsageError."""
    if not options.names_a_cluster:
        from tools.verify.run import own_cluster

        overrides = dict(options.overrides)
        if options.api_level is not None and overrides.setdefault(API_LEVEL, options.api_level) != options.api_level:
            raise click.UsageError(
                f"--as {options.api_level} and --override {API_LEVEL}={overrides[API_LEVEL]}: give one of both"
            )
        echo(f"Starting ZooKeeper and {options.brokers} brokers ...")
        links = options.random_faults is not None or any(fault.breakage is not None for fault in faults)
        return own_cluster(options.brokers, overrides, links=links, secure=options.secure, started=started)
    from tools.faults.clusters import find_target

    cluster = find_target(
        options.directory, options.project, options.fault_command, options.bootstrap_server, options.links
    )
    for option, is_given in (
        ("--override", options.overrides),
        ("--as", options.api_level),
        ("--secure", options.secure),
    ):
        if is_given:
            raise click.UsageError(
                f"{option} is for a cluster of its own: without --dir, --compose and --bootstrap-server"
            )
    return cluster


def settings_of(options: Options, cluster: Cluster | None) -> dict[str, str]:
    """librdkafka's, by the properties file, or by what the cluster itself says. Raises AdminError."""
    from tools.admin.client_settings import read_librdkafka_config
    from tools.faults.processes import ProcessCluster
    from tools.wire.security import PLAINTEXT

    config = options.command_config
    if config is None and options.bootstrap_server is not None:
        config = default_config(None)
    if config is None and isinstance(cluster, ProcessCluster):
        config = client_properties_of(cluster.cluster.directory)
    if config is None and cluster is not None and cluster.security != PLAINTEXT:
        return cluster.security.librdkafka_properties()
    return read_librdkafka_config(config)


def environment_of(cluster: Cluster | None) -> dict[str, str]:
    """What the program finds in its environment, besides BOOTSTRAP_SERVERS: how to connect to a secured cluster of this machine."""
    from tools.faults.processes import ProcessCluster
    from tools.verify.program import SECURITY_VARIABLE

    secured = cluster.cluster.secured if isinstance(cluster, ProcessCluster) else None
    return {} if secured is None else {SECURITY_VARIABLE: str(secured.path)}


def scheduled(faults: Sequence[str], scenario: Path | None) -> list[ScriptedFault]:
    """The faults of `--fault` and of the scenario, in the order of their times."""
    from tools.faults.script import FaultError, parse_all

    try:
        scripted = parse_all(faults)
    except FaultError as problem:
        raise click.BadParameter(str(problem), param_hint="--fault") from None
    if scenario is None:
        return scripted
    from tools.faults.scenario import read_scenario

    try:
        return in_order([*scripted, *read_scenario(scenario)])
    except FaultError as problem:
        raise click.BadParameter(str(problem), param_hint="--faults") from None


def in_order(faults: Sequence[ScriptedFault]) -> list[ScriptedFault]:
    return sorted(faults, key=lambda fault: fault.at_s)


def end_of(fault: ScriptedFault) -> float:
    return fault.at_s + (fault.lasts_s or 0.0)


def check_times(faults: Sequence[ScriptedFault], seconds: float | None) -> None:
    if seconds is not None and faults and faults[-1].at_s >= seconds:
        raise click.UsageError(f"--seconds {seconds:g} is over before the fault {str(faults[-1])!r}")


def check_possible(faults: Sequence[ScriptedFault], cluster: Cluster) -> None:
    from tools.faults.script import FaultError, check

    try:
        check(faults, cluster)
    except FaultError as problem:
        raise click.BadParameter(str(problem), param_hint="--fault") from None


def drawn(count: int, seed: int | None, partitions: Sequence[str], cluster: Cluster) -> list[ScriptedFault]:
    """Faults of a seed, of all kinds that the cluster can have. Those of leaders and followers are of `partitions`."""
    from tools.faults.clusters import session_s
    from tools.faults.rounds import as_script, why_not
    from tools.faults.schedule import all_kinds, schedule

    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    kinds = {
        name: kind
        for name, kind in all_kinds(session_s(cluster)).items()
        if why_not(kind, cluster, partitions, ()) is None
    }
    echo(f"Faults: seed {seed}, {count} faults of {len(kinds)} kinds")
    pauses = random.Random(seed)
    pauses_s = iter(lambda: pauses.uniform(*PAUSE_S), None)
    return as_script(schedule(seed, count, cluster.broker_ids, kinds), partitions, (), cluster, pauses_s)


def create_topics(servers: str, settings: dict[str, str], topics: Sequence[tuple[str, int, int | None]]) -> None:
    """With min.insync.replicas=2 if there are three replicas or more. Raises AdminError."""
    from tools.admin.kafka_admin import KafkaAdmin
    from tools.failures import TopicExists

    for name, partitions, replicas in topics:
        admin = KafkaAdmin(servers, properties=settings)
        count = replicas or min(REPLICATION_FACTOR, len(admin.cluster().nodes))
        configs = {"min.insync.replicas": "2"} if count >= REPLICATION_FACTOR else {}
        try:
            admin.create_topic(name, partitions=partitions, replication_factor=count, configs=configs)
        except TopicExists:
            echo(f"Topic {name} exists and is used unchanged.")


def pass_through(line: bytes) -> None:
    """A line of the program that is no report, as it is."""
    sys.stdout.buffer.write(line)
    sys.stdout.flush()


def write(*files: tuple[Path | None, Callable[[], str]]) -> None:
    """Writes the files that were asked for, with what the functions return."""
    from tools.private_files import write_output

    for path, text in files:
        if path is not None:
            write_output(path, text())


def guarded(work: Callable[[ExitStack], int]) -> None:
    """Exits with the code of `work`, after everything in the stack was ended; with one line and 2 for an expected error."""
    from tools.interrupts import Interrupted, ignore_from_now, interruptible

    try:
        with interruptible(), ExitStack() as started:
            try:
                code = explained(work, started)
            finally:
                ignore_from_now()
    except Interrupted as interrupt:
        echo(f"{interrupt}: everything that was started has been stopped.", err=True)
        code = interrupt.exit_code
    sys.exit(code)


def explained(work: Callable[[ExitStack], int], started: ExitStack) -> int:
    """Raises CouldNotRun for an expected error."""
    try:
        return work(started)
    except ExpectedError as problem:
        raise CouldNotRun(escaped(str(problem))) from None
    except OSError as problem:
        raise CouldNotRun(escaped(said_of(problem))) from None
