"""Report cards: what the failures of `ottla verify run --recipe` (docs/FAULTS.md) do to each client of the matrix.

All clients are at work side by side on one cluster, each on a topic and with a group of its own (supervisor.py). The failures happen
one after the other. What a client did between the begin of one and the begin of the next is its result there.
"""

from __future__ import annotations

import json
import re
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ottla.records import id_finder
from tests.clients.clients import Client
from tests.clients.supervisor import place_of
from tools.admin.kafka_admin import KafkaAdmin
from tools.cluster.local_cluster import LocalCluster
from tools.faults.processes import ProcessCluster
from tools.faults.request_hits import request_hits
from tools.faults.script import ScriptedFault, parse, parse_all
from tools.judge.outages import IN_FLIGHT_S
from tools.judge.verdict import Verdict
from tools.verify.recipes import RECIPES, Recipe
from tools.verify.run import Asked, verify

BEFORE_S = 3.0
FIRST_REPORT_S = 120.0
HEAL_S = 1.0
"""So long before the end of a trial, what is left of its rules is taken away."""
GRACE_S = 30.0
ASSIGNMENT = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
"""Each broker leads a partition of each topic, so a fault hits all clients."""
DONE_LINE = re.compile(r"\s*([\d.]+) s  ")


@dataclass(frozen=True, slots=True)
class Trial:
    """A failure in a run: from `began` to `ended`, in seconds. `rules`: client -> those of its own, by their ids."""

    name: str
    began: float
    ended: float
    faults: Sequence[ScriptedFault]
    rules: dict[str, set[str]]


@dataclass(slots=True)
class Result:
    """What one failure did to one client. `writes_s`, `reads_s`: the longest time without an answer to a record that waited.

    `hits`: requests that rules about its topic or its group have hit; None: the failure has no such rules.
    """

    writes_s: float = 0.0
    reads_s: float = 0.0
    hits: int | None = None
    found: list[str] = field(default_factory=list)
    """What is a failure, in words."""
    again: list[str] = field(default_factory=list)
    """Which of its programs were started again, and why."""

    @property
    def is_tried(self) -> bool:
        return self.hits != 0


Cards = dict[str, dict[str, Result]]
"""Client -> failure -> result."""


def trial_of(name: str, recipe: Recipe, clients: Sequence[Client], began: float) -> Trial:
    """Each client has the rules that are about its topic and its group; other faults happen once, to all."""
    lines: dict[str, None] = {}
    rules: dict[str, set[str]] = defaultdict(set)
    for client in clients:
        place = place_of(client)
        for line in recipe.faults(place, place, "broker 1"):
            fault = parse(line)
            if fault.request is None:
                if client is clients[0]:
                    lines[line] = None
                continue
            lines[line] = None
            if place in line:
                rules[client.name].add(str(fault.words))
    faults = parse_all(list(lines))
    first = min(fault.at_s for fault in faults)
    shifted = [replace(fault, at_s=fault.at_s - first + began) for fault in faults]
    ended = began + recipe.seconds(place_of(clients[0])) - first
    rest = parse(f"heal at {ended - HEAL_S:g}s")
    return Trial(name, began, ended, [*shifted, rest], rules)


def trials_of(clients: Sequence[Client]) -> list[Trial]:
    trials: list[Trial] = []
    for name, recipe in RECIPES.items():
        trials.append(trial_of(name, recipe, clients, trials[-1].ended if trials else BEFORE_S))
    return trials


class Watch:
    """What a run says: when faults happened by its own clock, and which programs were started again."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._began = time.monotonic()
        self.again: list[tuple[float, str, str]] = []
        """(seconds since the start of the run, client, what and why)"""

    def say(self, line: str) -> None:
        self.lines.append(line)
        if found := DONE_LINE.match(line):
            self._began = time.monotonic() - float(found[1])

    def passes(self, line: bytes) -> None:
        self.lines.append(line.decode(errors="replace").rstrip())
        if line.startswith(b'{"again"'):
            row = json.loads(line)
            at = time.monotonic() - self._began
            self.again.append((at, row["again"], f"the {row['what']} was started again: {row['why']}"))


def make_topics(cluster: LocalCluster, clients: Sequence[Client]) -> None:
    admin = KafkaAdmin(cluster.bootstrap_servers)
    for client in clients:
        admin.create_topic(place_of(client), replica_assignment=ASSIGNMENT, configs={"min.insync.replicas": "2"})


def run_cards(cluster: LocalCluster, clients: Sequence[Client]) -> tuple[Cards, Verdict, Watch]:
    """On brokers 1, 2 and 3."""
    make_topics(cluster, clients)
    trials = trials_of(clients)
    watch = Watch()
    asked = Asked(
        command=(sys.executable, "-m", "tests.clients.supervisor", *(client.name for client in clients)),
        seconds=trials[-1].ended,
        faults=[fault for trial in trials for fault in trial.faults],
        id_of=id_finder("value"),
        grace_s=GRACE_S,
        has_load=False,
        first_report_s=FIRST_REPORT_S,
    )
    verdict = verify(asked, cluster.bootstrap_servers, ProcessCluster(cluster), watch.say, watch.passes)
    return cards_of(clients, trials, verdict, watch, request_hits(cluster.directory)), verdict, watch


def cards_of(
    clients: Sequence[Client], trials: Sequence[Trial], verdict: Verdict, watch: Watch, hits: Mapping[str, int]
) -> Cards:
    """Pure."""
    cards: Cards = {client.name: {trial.name: Result() for trial in trials} for client in clients}
    name_of = {place_of(client): client.name for client in clients}
    begins = [trial.began - IN_FLIGHT_S for trial in trials]

    def result(client: str, at: float) -> Result:
        return cards[client][trials[max(0, bisect_right(begins, at) - 1)].name]

    for trial in trials:
        for client, rules in trial.rules.items():
            cards[client][trial.name].hits = sum(hits.get(rule, 0) for rule in rules)
    for judgement in verdict.judgements:
        for finding in judgement.findings if judgement.is_failure else ():
            result(name_of[finding.topic], finding.at).found.append(f"{finding.kind}: {finding.words}")
    for at, client, why in watch.again:
        result(client, at).again.append(why)
    for each in verdict.clients:
        for outage in each.outages:
            row = result(name_of[outage.topic], outage.began)
            if outage.group:
                row.reads_s = max(row.reads_s, outage.seconds)
            else:
                row.writes_s = max(row.writes_s, outage.seconds)
    return cards
