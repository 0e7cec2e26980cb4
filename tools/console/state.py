"""What the page shows, as plain JSON values, and what has changed between two moments. Pure.

A state has sections, and a section has entries by name:

- `cluster`: `controller`, `controller_epoch` (None: unknown), `problem` (why nothing can be read, or ""), and the counts
- `brokers`: id -> `state` (a `BrokerState`), `address`, `sees` (the controller that it knows), `leads`, `replicas`
- `partitions`: name -> [leader or -1, leader epoch, replicas, ISR]
- `offsets`: name -> high watermark
- `lags`: partition -> the largest lag of a group, in records
- `groups`: group -> `state`, `coordinator`, `members`, `lag`, `partitions`
- `moves`: partition -> `adding`, `removing`
- `unhealed`: a fault in words -> the brokers that it hit
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SECTIONS = ("cluster", "brokers", "partitions", "offsets", "lags", "groups", "moves", "unhealed")

Section = Mapping[str, Any]
State = dict[str, dict[str, Any]]
Change = dict[str, dict[str, Any]]
"""Section -> entry -> its new value; None: the entry is gone."""

PartitionRow = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""(leader or -1, leader epoch, replicas, ISR)"""


class BrokerState(StrEnum):
    """What the console knows of a broker. `CUT_OFF`: it answers, but the controller does not count it as alive."""

    RUNNING = "running"
    CUT_OFF = "cut off"
    SILENT = "does not answer"
    PAUSED = "paused"
    DOWN = "down"
    UNKNOWN = "not asked yet"


@dataclass(slots=True)
class Seen:
    """What is known of one broker. `views`: (brokers, controller or -1) of its last answer; None: it has not answered since it came."""

    address: str
    is_connected: bool | None = None
    """None: no connection was tried yet."""
    is_silent: bool = False
    is_paused: bool = False
    view: tuple[frozenset[int], int] | None = None


def broker_state(broker: int, seen: Seen, alive: frozenset[int] | None) -> BrokerState:
    """`alive`: the brokers that the controller counts as alive; None: nobody knows."""
    if seen.is_connected is None:
        return BrokerState.UNKNOWN
    if not seen.is_connected:
        return BrokerState.DOWN
    if seen.is_paused:
        return BrokerState.PAUSED
    if seen.is_silent:
        return BrokerState.SILENT
    if alive is not None and broker not in alive:
        return BrokerState.CUT_OFF
    return BrokerState.RUNNING


def answering(seen: Mapping[int, Seen]) -> dict[int, tuple[frozenset[int], int]]:
    """The views of the brokers that answer."""
    return {
        broker: each.view
        for broker, each in seen.items()
        if each.is_connected and not each.is_silent and not each.is_paused and each.view is not None
    }


def controller_of(seen: Mapping[int, Seen]) -> int | None:
    """The controller that most of the answering brokers know, if it is not known to be down; the lowest id of several."""
    votes = Counter(controller for _, controller in answering(seen).values() if controller >= 0)
    living = {
        controller: count
        for controller, count in votes.items()
        if controller not in seen or seen[controller].is_connected is not False
    }
    return min(living, key=lambda controller: (-living[controller], controller)) if living else None


def alive_by(seen: Mapping[int, Seen]) -> frozenset[int] | None:
    """The brokers that count as alive: in the controller's view, else in most views. None: nobody answers."""
    views = answering(seen)
    controller = controller_of(seen)
    if controller in views:
        return views[controller][0]
    if not views:
        return None
    count = Counter(brokers for brokers, _ in views.values())
    return max(count, key=lambda brokers: (count[brokers], len(brokers)))


def best_to_ask(seen: Mapping[int, Seen]) -> int | None:
    """Whose Metadata is the newest: the controller's, else that of a broker that counts as alive. None: nobody answers."""
    views = answering(seen)
    controller = controller_of(seen)
    if controller in views:
        return controller
    alive = alive_by(seen) or frozenset()
    return min(views, key=lambda broker: (broker not in alive, broker), default=None)


def brokers_section(seen: Mapping[int, Seen], partitions: Mapping[str, PartitionRow]) -> dict[str, Any]:
    alive = alive_by(seen)
    leads = Counter(row[0] for row in partitions.values())
    replicas = Counter(broker for row in partitions.values() for broker in row[2])
    return {
        str(broker): {
            "state": broker_state(broker, each, alive).value,
            "address": each.address,
            "leads": leads[broker],
            "replicas": replicas[broker],
        }
        for broker, each in sorted(seen.items())
    }


def counts(partitions: Mapping[str, PartitionRow], down: Iterable[int], moves: Mapping[str, Any]) -> dict[str, int]:
    """The counts of the section `cluster`. Replicas that a reassignment adds do not count as missing, as in `ottla cluster health`."""
    gone = set(down)
    topics = {name.rpartition("-")[0] for name in partitions}
    return {
        "topics": len(topics),
        "partitions": len(partitions),
        "leaderless": sum(row[0] < 0 or row[0] in gone for row in partitions.values()),
        "under_replicated": sum(
            not set(row[2]) - set(moves.get(name, {}).get("adding", ())) <= set(row[3])
            for name, row in partitions.items()
        ),
    }


def group_lags(
    committed: Mapping[str, Mapping[str, int]], offsets: Mapping[str, int]
) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """From group -> partition -> committed offset: (group -> (its lag, its partitions), partition -> the largest lag)."""
    of_groups: dict[str, tuple[int, int]] = {}
    of_partitions: dict[str, int] = {}
    for group, positions in committed.items():
        total = 0
        for partition, position in positions.items():
            if partition in offsets:
                lag = max(0, offsets[partition] - position)
                total += lag
                of_partitions[partition] = max(lag, of_partitions.get(partition, 0))
        of_groups[group] = (total, len(positions))
    return of_groups, of_partitions


def changed(before: Section, after: Section) -> dict[str, Any]:
    """The entries of `after` that `before` has not, or differently, and None for those that are gone."""
    found = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return found | {name: None for name in before if name not in after}


def merged(earlier: Change, later: Change) -> None:
    """Adds a later change to one that was not sent yet; it never becomes larger than the state."""
    for section, entries in later.items():
        earlier.setdefault(section, {}).update(entries)


@dataclass(slots=True)
class Rates:
    """Records per second, from high watermarks over time."""

    _at_s: float | None = None
    _offsets: Mapping[str, int] = field(default_factory=dict)

    def of(self, at_s: float, offsets: Mapping[str, int]) -> float | None:
        """Since the last call. None for the first call. Partitions that are new, or not known any more, do not count."""
        earlier_s, earlier = self._at_s, self._offsets
        # A partition without a leader keeps its last offset: what it gains meanwhile counts when it is known again.
        self._at_s, self._offsets = at_s, {**earlier, **offsets}
        if earlier_s is None or at_s <= earlier_s:
            return None
        gained = sum(max(0, offset - earlier[name]) for name, offset in offsets.items() if name in earlier)
        return gained / (at_s - earlier_s)


def mean_between(earlier: tuple[float, float], later: tuple[float, float]) -> float | None:
    """The mean of a summary between two readings of (sum, count); None if nothing was counted, or the broker has restarted."""
    count = later[1] - earlier[1]
    return (later[0] - earlier[0]) / count if count > 0 and later[0] >= earlier[0] else None


def summed(pages: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """The summaries of several brokers added up."""
    totals: dict[str, tuple[float, float]] = {}
    for page in pages:
        for name, (total, count) in page.items():
            before = totals.get(name, (0.0, 0.0))
            totals[name] = (before[0] + total, before[1] + count)
    return totals
