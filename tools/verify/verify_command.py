"""`ottla verify run`: the options, and what is printed."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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
from tools.judge.kinds import HARMLESS, KINDS
from tools.numbers import FILE, OUTPUT, FloatRange, IntRange, Parsed
from tools.terminal import echo

if TYPE_CHECKING:
    from tools.faults.cluster import Cluster
    from tools.faults.script import ScriptedFault
    from tools.judge.verdict import Verdict

AFTER_THE_LAST_FAULT_S = 15.0
WITHOUT_FAULTS_S = 30.0
PAUSE_S = (3.0, 6.0)
"""The time between two random faults: long enough for clients to recover, so that each fault has its own outage."""
COULD_NOT_RUN = 2
REPLICATION_FACTOR = 3


class CouldNotRun(click.ClickException):
    """One line; the exit code is that of a usage error."""

    exit_code = COULD_NOT_RUN


def setting(text: str) -> tuple[str, str]:
    """(key, value) of `unclean.leader.election.enable=true`. Raises ValueError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


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
@command_config_option("Properties file with client settings (TLS, SASL), for reading back and for ottla's load.")
@click.option("--brokers", type=IntRange(1, 100), default=3, show_default=True, help="Of a cluster of its own.")
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
@click.option("--no-load", is_flag=True, help="Without ottla's own load beside the program.")
@click.option("--json", "json_file", type=OUTPUT, help="Write the verdict as JSON.")
@click.option("--junit", "junit_file", type=OUTPUT, help="Write JUnit XML.")
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
    bootstrap_server: str | None
    fault_command: str | None
    command_config: Path | None
    brokers: int
    secure: bool
    overrides: Sequence[tuple[str, str]]
    topics: Sequence[tuple[str, int, int | None]]
    faults: Sequence[str]
    scenario: Path | None
    random_faults: int | None
    seed: int | None
    seconds: float | None
    grace_s: float
    id_from: str
    allowed: Sequence[str]
    forbidden: Sequence[str]
    no_load: bool
    json_file: Path | None
    junit_file: Path | None
    html_file: Path | None

    @property
    def names_a_cluster(self) -> bool:
        return any(each is not None for each in (self.directory, self.project, self.bootstrap_server))


def verified(options: Options, started: ExitStack) -> int:
    """Checks the options before anything is started, runs, and prints the verdict; returns its exit code."""
    from ottla.records import BadId, id_finder
    from tools.judge.lines import lines_of
    from tools.verify.run import Asked
    from tools.verify.run import verify as run_verify
    from tools.wire.client_properties import read_security

    command = options.command
    if options.no_load and not command:
        raise click.UsageError("without a COMMAND, only ottla's load runs: --no-load leaves nothing to judge")
    if command and shutil.which(command[0]) is None:
        raise CouldNotRun(f"{escaped(command[0])}: there is no such program, or it is not executable")
    try:
        id_of = id_finder(options.id_from)
    except BadId as problem:
        raise click.BadParameter(str(problem), param_hint="--id") from None
    if options.seed is not None and options.random_faults is None:
        raise click.UsageError("--seed is for --random-faults")
    scripted = scheduled(options.faults, options.scenario)
    read_security(options.command_config, ignores_others=True)  # its errors name the line
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
    create_topics(servers, settings, options.topics)
    asked = Asked(
        command=command,
        seconds=end_s,
        faults=scripted,
        id_of=id_of,
        grace_s=options.grace_s,
        has_load=not options.no_load,
        client_settings=settings,
        environment=environment_of(cluster),
        topics=[name for name, _, _ in options.topics],
        allowed=frozenset(options.allowed),
        forbidden=frozenset(options.forbidden),
    )
    verdict = run_verify(asked, servers, cluster, echo, pass_through)
    write(verdict, shlex.join(command), options)
    echo()
    for line in lines_of(verdict):
        echo(line)
    return verdict.exit_code


def cluster_of(options: Options, faults: Sequence[ScriptedFault], started: ExitStack) -> Cluster | None:
    """The cluster of the options, or a new one; None if faults cannot hit it. Raises ClusterError, UsageError."""
    if not options.names_a_cluster:
        from tools.verify.run import own_cluster

        echo(f"Starting ZooKeeper and {options.brokers} brokers ...")
        links = options.random_faults is not None or any(fault.breakage is not None for fault in faults)
        return own_cluster(
            options.brokers, dict(options.overrides), links=links, secure=options.secure, started=started
        )
    from tools.faults.clusters import find_target

    cluster = find_target(options.directory, options.project, options.fault_command, options.bootstrap_server)
    for option, is_given in (("--override", options.overrides), ("--secure", options.secure)):
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


def write(verdict: Verdict, command: str, options: Options) -> None:
    """Writes the files that were asked for."""
    from tools.private_files import write_output

    files = ((options.json_file, as_json), (options.junit_file, as_junit), (options.html_file, as_html))
    for path, writer in files:
        if path is not None:
            write_output(path, writer(verdict, command))


def as_json(verdict: Verdict, command: str) -> str:
    return json.dumps({"command": command, **verdict.to_json()}, indent=2) + "\n"


def as_junit(verdict: Verdict, command: str) -> str:
    from tools.verify.page import junit_of

    return junit_of(verdict)


def as_html(verdict: Verdict, command: str) -> str:
    from tools.verify.page import page_of

    return page_of(verdict, command)


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
