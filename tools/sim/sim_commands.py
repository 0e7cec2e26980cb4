"""`ottla sim`: one simulated history by its seed, and the search for seeds that fail."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import cast

import click
from yaml import YAMLError

from tools.failures import ExpectedError, errors_in_one_line
from tools.numbers import DIRECTORY, FILE, OUTPUT, FloatRange, IntRange
from tools.sim.plan import (
    CONTROLLER,
    FOLLOWER,
    GROUP_COORDINATOR,
    GROUP_FOLLOWER,
    GROUP_OTHER,
    GROUP_OUTSIDER,
    LEADER,
    OTHER,
    OUTSIDER,
    TRANSACTION_COORDINATOR,
    TRANSACTION_FOLLOWER,
    TRANSACTION_OTHER,
    TRANSACTION_OUTSIDER,
    BrokenPlan,
    Plan,
    from_yaml,
    plan_of,
    smaller,
    to_yaml,
)
from tools.sim.simulation import Outcome
from tools.sim.worker import Worker
from tools.terminal import echo
from tools.yaml_nodes import not_yaml

FAILED = 1
SEEDS_MAX = 2**31
PROBLEMS_SHOWN = 20
SHRINKING_STEPS = 200
WHOM = {
    0: "",
    CONTROLLER: "of the controller",
    LEADER: "of the leader",
    FOLLOWER: "of a follower",
    OTHER: "of another follower",
    OUTSIDER: "of a broker without a replica",
    GROUP_COORDINATOR: "of the group's coordinator",
    GROUP_FOLLOWER: "of a follower of the group's coordinator",
    GROUP_OTHER: "of another follower of the group's coordinator",
    TRANSACTION_COORDINATOR: "of the transaction's coordinator",
    TRANSACTION_FOLLOWER: "of a follower of the transaction's coordinator",
    TRANSACTION_OTHER: "of another follower of the transaction's coordinator",
    GROUP_OUTSIDER: "of a broker without a replica of the group's partition",
    TRANSACTION_OUTSIDER: "of a broker without a replica of the transaction's partition",
}
AIOKAFKA = click.option(
    "--aiokafka", type=IntRange(0, 10), default=0, metavar="N", help="so many clients of aiokafka of each kind, besides"
)


@click.group()
def sim() -> None:
    """Run the real brokers in a simulated world: the same seed is the same history, with the same faults."""


@sim.command()
@click.option("--seed", type=IntRange(0, SEEDS_MAX), help="which history")
@click.option("--plan", "file", type=FILE, metavar="FILE", help="in the place of --seed: a plan that `hunt` wrote")
@click.option(
    "--seconds", type=FloatRange(1, 86_400), default=60.0, show_default=True, help="length of load and faults"
)
@click.option(
    "--story", type=DIRECTORY, metavar="DIR", help="write the brokers' event logs there, for `ottla timeline`"
)
@click.option("--mutant", default="", metavar="MODULE:FUNCTION", help="take a rule out of the brokers first")
@AIOKAFKA
@errors_in_one_line()
def run(seed: int | None, file: Path | None, seconds: float, story: Path | None, mutant: str, aiokafka: int) -> None:
    """Run one history and judge it. The exit code is 1 if a rule was broken."""
    if (seed is None) == (file is None):
        raise click.UsageError("give --seed or --plan")
    if file is not None and aiokafka:
        raise click.UsageError("--aiokafka goes with --seed; a plan says itself how many there are")
    if file is None:
        plan = planned(seed or 0, seconds, aiokafka)
        again = f"--seed {seed} --seconds {seconds:g}" + f" --aiokafka {aiokafka}" * bool(aiokafka)
    else:
        plan, again = _read(file), f"--plan {file}"
    for line in described(plan):
        echo(line)
    outcome = next(outcomes(iter([plan]), mutant))
    echo("")
    echo(
        f"{outcome.virtual_s:.0f} s of the world in {outcome.cpu_s:.1f} s of the processor: "
        + ", ".join(f"{count:,} {what}" for what, count in outcome.counts.items())
    )
    echo(f"all events: {outcome.digest}")
    if story is not None:
        write_story(outcome, story)
        echo(f"story: ottla timeline --all {story}/broker-*/events.jsonl")
    _say_outcome(outcome, again)


@sim.command()
@click.option("--minutes", type=FloatRange(0.01, 100_000), default=10.0, show_default=True, help="how long to search")
@click.option("--from-seed", type=IntRange(0, SEEDS_MAX), help="the first seed  [default: by the clock]")
@click.option("--seconds", type=FloatRange(1, 86_400), default=60.0, show_default=True, help="length of each history")
@click.option("--mutant", default="", metavar="MODULE:FUNCTION", help="take a rule out of the brokers first")
@click.option(
    "--out",
    type=OUTPUT,
    metavar="FILE",
    default=Path("found.yaml"),
    show_default=True,
    help="where the shrunk plan goes",
)
@AIOKAFKA
@errors_in_one_line()
def hunt(minutes: float, from_seed: int | None, seconds: float, mutant: str, out: Path, aiokafka: int) -> None:
    """Search seeds on all cores until one fails. Then shrink its plan: leave out faults, clients and time while it still fails."""
    first = int(time.time()) % 1_000_000 * 1000 if from_seed is None else from_seed
    ends = time.monotonic() + minutes * 60
    began, seeds, virtual_s = time.monotonic(), 0, 0.0
    for outcome in outcomes(_plans(first, seconds, aiokafka, ends), mutant):
        seeds += 1
        virtual_s += outcome.virtual_s
        if outcome.problems:
            echo(f"seed {outcome.seed} fails, after {seeds} seeds: {outcome.problems[0]}")
            plan, outcome = shrunk(planned(outcome.seed, seconds, aiokafka), outcome, mutant)
            for line in described(plan):
                echo(line)
            try:
                out.write_text(to_yaml(plan))
            except OSError as problem:
                echo(to_yaml(plan))
                raise ExpectedError(f"{out} cannot be written ({problem.strerror}): the plan is above") from None
            _say_outcome(outcome, f"--plan {out}" + f" --mutant {mutant}" * bool(mutant))
    real = max(time.monotonic() - began, 0.001)
    echo(
        f"{seeds} seeds from {first} on, {virtual_s / 3600:.1f} hours of the world ({virtual_s / real:.0f} an hour): all well"
    )


def planned(seed: int, seconds: float, aiokafka: int) -> Plan:
    """The plan of that seed, and so many clients of aiokafka. Raises ExpectedError if the library is not there."""
    if aiokafka and find_spec("aiokafka") is None:
        raise ExpectedError("aiokafka is not installed: pip install aiokafka")
    return replace(plan_of(seed, seconds), aiokafka=aiokafka)


def _plans(first: int, seconds: float, aiokafka: int, ends: float) -> Iterator[Plan]:
    seed = first
    while time.monotonic() < ends:
        yield planned(seed, seconds, aiokafka)
        seed += 1


def outcomes(plans: Iterator[Plan], mutant: str = "") -> Iterator[Outcome]:
    """The outcomes of all plans, as they come: a history on each core. Raises SimulationFailed."""
    cores = os.cpu_count() or 1
    with ExitStack() as stack:
        idle: list[Worker] = []
        busy: dict[Connection, Worker] = {}
        while True:
            while len(busy) < cores and (plan := next(plans, None)) is not None:
                worker = idle.pop() if idle else stack.enter_context(Worker(takes_mutants=bool(mutant)))
                worker.start(plan, mutant)
                busy[worker.connection] = worker
            if not busy:
                return
            for connection in wait(list(busy)):
                worker = busy.pop(cast(Connection, connection))
                idle.append(worker)
                yield worker.outcome()


def shrunk(plan: Plan, outcome: Outcome, mutant: str) -> tuple[Plan, Outcome]:
    """The smallest plan that was found, and its outcome: it fails as well, perhaps in another way."""
    left = SHRINKING_STEPS
    candidates = smaller(plan)
    with Worker(takes_mutants=bool(mutant)) as worker:
        while left and (candidate := next(candidates, None)) is not None:
            left -= 1
            worker.start(candidate, mutant)
            found = worker.outcome()
            if found.problems:
                plan, outcome, candidates = candidate, found, smaller(candidate)
                echo(f"  still fails with {len(plan.faults)} faults in {plan.seconds:g} s")
    return plan, outcome


def _read(file: Path) -> Plan:
    """Raises ExpectedError, OSError."""
    try:
        return from_yaml(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ExpectedError(f"{file} is not UTF-8") from None
    except YAMLError as problem:
        raise ExpectedError(f"{file}{not_yaml(problem)}") from None
    except BrokenPlan as problem:
        raise ExpectedError(f"{file}: {problem}") from None


def _say_outcome(outcome: Outcome, again: str) -> None:
    for problem in outcome.problems[:PROBLEMS_SHOWN]:
        echo(f"  {problem}")
    if len(outcome.problems) > PROBLEMS_SHOWN:
        echo(f"  and {len(outcome.problems) - PROBLEMS_SHOWN} more")
    echo(f"{'FAILED' if outcome.problems else 'PASSED'}: ottla sim run {again}")
    if outcome.problems:
        raise SystemExit(FAILED)


def described(plan: Plan) -> list[str]:
    """The plan for a terminal."""
    topics = ", ".join(f"{name} ({count} partitions)" for name, count in plan.partitions.items())
    counts = {"producers": plan.producers, "transactional producers": plan.transactional, "readers": plan.readers}
    counts |= {"members of a group": plan.members, "admins": int(plan.has_admin)}
    if plan.processors:
        counts["processors that commit in transactions"] = plan.processors
    if plan.new_members:
        counts["of the new protocol"] = plan.new_members
    if plan.second_instances:
        counts["second instances of transactional producers"] = plan.second_instances
    if plan.aiokafka:
        counts["clients of aiokafka of each kind"] = plan.aiokafka
    lines = [f"{topics} with {plan.replicas} replicas", ", ".join(f"{count} {what}" for what, count in counts.items())]
    if plan.remakes:
        lines.append("transactions with partitions of topics that are deleted and made again")
    if plan.log_dirs > 1:
        lines.append(f"{plan.log_dirs} log directories of each broker")
    if plan.pauses != 1.0:
        lines.append(f"clients pause {plan.pauses:g} times as long as usual")
    lines += [f"{key}={value}" for key, value in plan.settings.items()]
    for fault in plan.faults:
        whom = WHOM.get(fault.broker, f"broker {fault.broker}")
        lines.append(f"{fault.at:8.3f} s  {fault.what} {whom} for {fault.lasts:g} s".replace("  for", " for"))
    return lines


def write_story(outcome: Outcome, directory: Path) -> None:
    """The event log of each broker, where `ottla timeline` finds it."""
    for broker, lines in outcome.story.items():
        if broker:
            path = directory / f"broker-{broker}"
            path.mkdir(parents=True, exist_ok=True)
            (path / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
