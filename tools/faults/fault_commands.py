"""`ottla fault ACTION ROLE` and `ottla fault run`: faults by role, on any cluster that faults can hit."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from protocol.conversation.rule import CLOSE_IDLE
from tools.admin.bootstrap import BOOTSTRAP_VARIABLE, NoBootstrapServer
from tools.admin.connection import format_option
from tools.admin.naming import bootstrap_option, compose_option, directory_option, fault_command_option
from tools.cluster.local_cluster import DEFAULT_DIRECTORY
from tools.cluster.processes import ClusterError
from tools.failures import errors_in_one_line
from tools.faults.cluster import Cluster
from tools.faults.clusters import SESSION_DEFAULT_S, find_target, session_s, who_does_not_serve
from tools.faults.processes import ProcessCluster
from tools.faults.record import FaultRecord
from tools.faults.request_words import VERBS as REQUEST_VERBS
from tools.faults.request_words import is_request_fault
from tools.faults.roles import Roles
from tools.faults.rounds import Rounds, why_not
from tools.faults.schedule import Kind, all_kinds, schedule
from tools.faults.script import DoneFault, Faulted, FaultRun, check, why_impossible
from tools.faults.words import LASTING, OF_LINKS, OPTIONS, VERBS, FaultError, Words, parse_words, seconds_of, words_of
from tools.interrupts import termination_as_interrupt
from tools.numbers import DIRECTORY, FILE, IntRange
from tools.terminal import echo

Command = TypeVar("Command", bound=Callable[..., None])

STEP_S = 0.05
READY_TIMEOUT_S = 60.0
INTERRUPTED = 130

HELP = {
    "kill": "Kill by SIGKILL, or by `docker kill`.",
    "stop": "Stop cleanly by SIGTERM, or by `docker stop`. Leaderships move first.",
    "pause": "Pause by SIGSTOP, or by `docker pause`.",
    "bounce": "Kill, and start again at once.",
    "restart": "Stop cleanly and start again. Starts a broker that has ended.",
    "resume": "End a pause.",
    "isolate": "Cut the links to all peers and to ZooKeeper, or only those that --from names. No connection is reset.",
    "cut": "Cut, slow down or reset the links to those that --from names.",
    "expire-session": "End the ZooKeeper session without a pause, as if it had expired.",
    "fill-disk": "Fill the log directory, which must be on a small file system of its own.",
    "heal": "Undo the faults of this role or broker; without a role, all faults.",
}
REQUEST_HELP = {
    "answer": "Answer requests with an error: produce of orders-0 with NOT_LEADER_OR_FOLLOWER 3 times.",
    "lose": "Do the work, and lose the answer: the answer to end-txn once.",
    "drop": "Lose requests: join-group of client billing-*.",
    "delay": "Answer later: fetch by 200ms +-50ms for 10s.",
    "throttle": "Answer as if the client were over its quota: client batch-7 by 300ms.",
    "garble": "Change a bit of the records: the answer to fetch once.",
    "refuse": "End connections at their first request: connections of client X.",
    "close": "Close connections that wait for nothing: idle connections now.",
}


def cluster_options(command: Command) -> Command:
    """`--dir`, `--compose`, `--fault-command`, `--bootstrap-server`, `--links`."""
    for option in (
        bootstrap_option(f"with --fault-command: where the brokers are  [default: ${BOOTSTRAP_VARIABLE}]"),
        click.option(
            "--links", type=DIRECTORY, metavar="DIR", help="the cluster behind the `ottla links` of this directory"
        ),
        fault_command_option(),
        compose_option(),
        directory_option(),
    ):
        command = option(command)
    return command


def links_options(command: Command) -> Command:
    for option in (
        click.option("--half", is_flag=True, help="deliver half of the next bytes, then reset the connection"),
        click.option("--reset", is_flag=True, help="reset connections, also new ones"),
        click.option("--throttle", metavar="RATE", help="deliver at most this many bits per second, such as 3Mbit"),
        click.option("--delay", metavar="TIME", help="deliver everything this much later, such as 100ms"),
        click.option("--one-way", metavar="in|out", help="in: the victim hears nothing; out: nobody hears it"),
        click.option(
            "--from",
            "from_",
            metavar="WHOM",
            help="cut only these links: peers, zookeeper, controller, broker:ID; with commas between them",
        ),
    ):
        command = option(command)
    return command


@click.group()
def fault() -> None:
    """Break a cluster by role, and heal it.

    ROLE is one of: leader TOPIC-PARTITION, follower TOPIC-PARTITION, controller, coordinator GROUP, transaction-coordinator ID,
    broker ID, zookeeper.
    """


def _add(verb: str) -> None:
    def command(role: tuple[str, ...], **options: Any) -> None:
        one_fault(verb, " ".join(role), **options)

    command.__doc__ = HELP[verb]
    decorated = cluster_options(command)
    if verb in LASTING:
        decorated = click.option("--for", "for_", metavar="TIME", help="undo the fault after this time")(decorated)
    if verb in OF_LINKS:
        decorated = links_options(decorated)
    decorated = click.argument("role", nargs=-1, required=verb != "heal", metavar="ROLE")(decorated)
    fault.command(verb, short_help=HELP[verb])(decorated)


def _add_of_requests(verb: str) -> None:
    def command(words: tuple[str, ...], **options: Any) -> None:
        fault_in_requests(" ".join((verb, *words)), **options)

    command.__doc__ = REQUEST_HELP[verb]
    decorated = click.argument("words", nargs=-1, required=True, metavar="WORDS")(cluster_options(command))
    dashes = {"ignore_unknown_options": True}  # before a word, as before those of other faults
    fault.command(verb, short_help=REQUEST_HELP[verb], context_settings=dashes)(decorated)


for _verb in VERBS:
    _add(_verb)
for _verb in REQUEST_VERBS:
    _add_of_requests(_verb)


def one_fault(
    verb: str,
    role: str,
    directory: Path | None,
    project: str | None,
    fault_command: str | None,
    bootstrap_server: str | None,
    links: Path | None,
    **options: Any,
) -> None:
    """Carries one fault out; with `for`, undoes it afterwards."""
    said = {key: options.get(key.replace("-", "_")) or options.get(f"{key}_") for key in OPTIONS}
    given = {key: "" if value is True else str(value) for key, value in said.items() if value}
    if is_request_fault(f"{verb} {role}"):
        behind = (f"{key} {value}".rstrip() for key, value in given.items())
        fault_in_requests(" ".join((verb, role, *behind)), directory, project, fault_command, bootstrap_server, links)
        return
    with errors_in_one_line(), termination_as_interrupt():
        words = words_of(verb, role, given, " ".join(filter(None, (verb, role))))
        if words.role == "it":
            raise FaultError("`it` is for scripts; name a role")
        cluster = named_cluster(directory, project, fault_command, bootstrap_server, links)
        reason = why_impossible(words, cluster)
        if reason is not None:
            raise FaultError(reason)
        faulted = Faulted(cluster, _topics_of(words.role), record=FaultRecord(cluster.record_file))
        try:
            rows, _ = faulted.carry_out(words)
            for row in rows:
                echo(str(row), err=bool(row.error))
            if any(row.error for row in rows):
                sys.exit(1)
            if words.lasts_s is not None:
                time.sleep(words.lasts_s)
        finally:
            if words.lasts_s is not None:
                with uninterrupted():
                    _say_undone(faulted.undo_noted(words))
        if words.lasts_s is None and verb in LASTING:
            echo("It lasts until `ottla fault heal`.")


def fault_in_requests(
    line: str,
    directory: Path | None,
    project: str | None,
    fault_command: str | None,
    bootstrap_server: str | None,
    links: Path | None,
) -> None:
    """Gives the brokers a rule about requests. They end it themselves after its `for`."""
    with errors_in_one_line():
        words = parse_words(line)
        if words.at_s is not None:
            raise FaultError(f"{line!r}: a time is for scripts, such as `ottla fault run`")
        cluster = named_cluster(directory, project, fault_command, bootstrap_server, links)
        reason = why_impossible(words, cluster)
        if reason is not None:
            raise FaultError(reason)
        rows, _ = Faulted(cluster, (), record=FaultRecord(cluster.record_file)).carry_out(words)
        for error in dict.fromkeys(str(row) for row in rows if row.error):
            echo(error, err=True)
        brokers = ", ".join(str(row.broker) for row in rows if not row.error)
        if not brokers:
            sys.exit(1)
        echo(f"{words}: at broker {brokers}" if len(rows) == 1 else f"{words}: at brokers {brokers}")
        if words.lasts_s is None and verb_lasts(words):
            echo("It lasts until `ottla fault heal`.")


def verb_lasts(words: Words) -> bool:
    return words.request is not None and words.request.rule.effect != CLOSE_IDLE


def _say_undone(rows: Sequence[DoneFault]) -> None:
    for row in rows:
        echo(str(row), err=bool(row.error))
    if any(row.error for row in rows):
        sys.exit(1)


def _topics_of(role: str) -> list[str]:
    """The topic of a leader or follower: what else the victim leads there is reported."""
    kind, _, rest = role.partition(" of ")
    return [rest.rpartition("-")[0]] if kind in ("leader", "follower") else []


@fault.command()
@click.argument("scenario", required=False, type=FILE, metavar="[SCENARIO.yaml]")
@click.option("--random", "is_random", is_flag=True, help="draw faults from a seed instead of playing a scenario")
@click.option("--seed", type=IntRange(0), help="with --random: the seed; the same seed makes the same schedule")
@click.option("--count", type=IntRange(1, 100_000), help="with --random: the number of faults  [default: 20]")
@click.option(
    "--kinds", metavar="NAME[,NAME...]", help="with --random: draw only these kinds; `--kinds list` lists them"
)
@click.option(
    "--for",
    "for_",
    metavar="TIME[-TIME]",
    help="with --random: how long each fault lasts  [default: by its kind]",
)
@click.option("--pause", metavar="TIME[-TIME]", help="with --random: the time between two faults  [default: 500ms-3s]")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="with --random: hit leaders of this topic; may be repeated  [default: of all topics]",
)
@click.option(
    "--group", "groups", multiple=True, help="with --random: hit the coordinator of this group; may be repeated"
)
@click.option(
    "--session",
    metavar="TIME",
    help="with --random: the brokers' session time-out  [default: a local cluster's own, else 6s]",
)
@format_option
@cluster_options
def run(
    scenario: Path | None,
    is_random: bool,
    directory: Path | None,
    project: str | None,
    fault_command: str | None,
    bootstrap_server: str | None,
    links: Path | None,
    output: str,
    **options: Any,
) -> None:
    """Carry out a scenario, or a random schedule. Heals everything at the end, also after Ctrl-C.

    The exit code is 1 if a fault could not be carried out, or if a broker does not serve at the end.
    """
    if options["kinds"] == "list":
        for name, kind in all_kinds(SESSION_DEFAULT_S).items():
            echo(f"{name:<30}{' '.join(filter(None, (kind.action, kind.role, str(kind.breakage or ''))))}")
        return
    if is_random == (scenario is not None):
        raise click.UsageError("give a scenario file or --random")
    if not is_random and any(value for value in options.values()):
        raise click.UsageError(
            "--seed, --count, --kinds, --for, --pause, --topic, --group and --session are for --random"
        )
    with errors_in_one_line(), termination_as_interrupt():
        if scenario is not None:
            from tools.faults.scenario import read_scenario

            scripted = read_scenario(scenario)
        cluster = named_cluster(directory, project, fault_command, bootstrap_server, links)
        record = FaultRecord(cluster.record_file)
        if scenario is not None:
            check(scripted, cluster)
        said = Said(output)
        if scenario is not None:
            run_scenario(cluster, FaultRun(cluster, scripted, [], said, record=record))
        else:
            run_random(cluster, said, record, **options)
        wait_until_served(cluster)
        said.end("healed; all brokers serve")
        if said.failed:
            sys.exit(1)


class Said:
    """Prints each fault when it was tried, with the time."""

    def __init__(self, output: str) -> None:
        self.failed = 0
        self._is_json = output == "json"
        self._began_ns = time.time_ns()

    def __call__(self, row: DoneFault) -> None:
        self.failed += bool(row.error)
        if self._is_json:
            echo(json.dumps(row.to_row()))
        else:
            self._line(str(row), row.at_ns)
        sys.stdout.flush()

    def end(self, text: str) -> None:
        if not self._is_json:
            self._line(text, time.time_ns())

    def _line(self, text: str, at_ns: int) -> None:
        clock = datetime.fromtimestamp(at_ns / 1e9).strftime("%H:%M:%S.%f")[:-3]
        echo(f"{clock} +{(at_ns - self._began_ns) / 1e9:.1f}s  {text}")


def run_scenario(cluster: Cluster, faults: FaultRun) -> None:
    began = time.monotonic()
    try:
        while not faults.is_over:
            faults.step(time.monotonic() - began)
            time.sleep(STEP_S)
    finally:
        with uninterrupted():
            faults.finish()


def run_random(
    cluster: Cluster,
    said: Said,
    record: FaultRecord,
    *,
    seed: int | None,
    count: int | None,
    kinds: str | None,
    for_: str | None,
    pause: str | None,
    topics: Sequence[str],
    groups: Sequence[str],
    session: str | None,
) -> None:
    """Plays the rounds of a schedule. Raises ClusterError, FaultError."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    session_timeout_s = seconds_of(session, "--session") if session else session_s(cluster)
    known = Roles(cluster).topics()
    missing = [topic for topic in topics if topic not in known]
    if missing:
        raise FaultError(f"there is no topic {missing[0]}")
    partitions = [f"{topic}-{number}" for topic in sorted(topics or known) for number in range(known[topic])]
    chosen = chosen_kinds(kinds, session_timeout_s, for_)
    possible = {name: kind for name, kind in chosen.items() if why_not(kind, cluster, partitions, groups) is None}
    if kinds and len(possible) < len(chosen):
        name, kind = next((name, kind) for name, kind in chosen.items() if name not in possible)
        raise FaultError(f"{name}: {why_not(kind, cluster, partitions, groups)}")
    if not possible:
        raise FaultError("this cluster can have none of these faults")
    shortest, longest = time_range(pause or "500ms-3s", "--pause")
    pauses = random.Random(seed)
    faulted = Faulted(cluster, (), record=record)
    rounds = Rounds(cluster, faulted, partitions, list(groups), said)
    left_out = (
        f"; not possible here: {', '.join(sorted(set(chosen) - set(possible)))}" if len(possible) < len(chosen) else ""
    )
    said.end(f"seed {seed}, {count or 20} faults of {len(possible)} kinds{left_out}")
    try:
        for round_ in schedule(seed, count or 20, cluster.broker_ids, possible):
            said.end(f"round {round_.number}: {round_.name}, for {round_.seconds:.2f} s")
            rounds.play(round_)
            time.sleep(pauses.uniform(shortest, longest))
    finally:
        with uninterrupted():
            faulted.heal_all()


def chosen_kinds(names: str | None, session_s: float, lasts: str | None) -> dict[str, Kind]:
    """Raises FaultError."""
    kinds = all_kinds(session_s)
    wanted = [name.strip() for name in names.split(",")] if names else list(kinds)
    for name in wanted:
        if name not in kinds:
            raise FaultError(f"--kinds {name!r} is unknown; the kinds are {', '.join(kinds)}")
    found = {name: kinds[name] for name in wanted}
    if lasts is None:
        return found
    shortest, longest = time_range(lasts, "--for")
    return {name: replace(kind, shortest_s=shortest, longest_s=longest) for name, kind in found.items()}


def time_range(text: str, where: str) -> tuple[float, float]:
    """`2s` or `500ms-3s` in seconds. Raises FaultError."""
    first, dash, last = text.partition("-")
    shortest = seconds_of(first, where)
    longest = seconds_of(last, where) if dash else shortest
    if longest < shortest:
        raise FaultError(f"{where} {text!r}: the second time is shorter than the first")
    return shortest, longest


def wait_until_served(cluster: Cluster) -> None:
    """Raises ClusterError if a broker does not serve in READY_TIMEOUT_S."""
    reason = who_does_not_serve(cluster, READY_TIMEOUT_S)
    if reason:
        raise ClusterError(f"{READY_TIMEOUT_S:g} s after the heal {reason}")


def named_cluster(
    directory: Path | None,
    project: str | None,
    fault_command: str | None,
    bootstrap_server: str | None,
    links: Path | None,
) -> Cluster:
    """The cluster of the options; without one, that of ./ottla-cluster. Raises ClusterError, UsageError."""
    if bootstrap_server is not None and fault_command is None:
        raise click.UsageError(
            "--bootstrap-server is for --fault-command; --dir, --compose and --links know their brokers"
        )
    if directory is None and project is None and fault_command is None and links is None:
        directory = DEFAULT_DIRECTORY
    try:
        found = find_target(directory, project, fault_command, bootstrap_server, links)
    except NoBootstrapServer as problem:
        raise ClusterError(str(problem)) from None
    assert found is not None
    if isinstance(found, ProcessCluster) and found.is_stopped():
        raise ClusterError(f"the cluster in {directory} is not running; `ottla cluster start` starts it")
    return found


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Nothing but SIGKILL ends a heal."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    earlier = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, earlier, strict=True):
            signal.signal(number, handler)
