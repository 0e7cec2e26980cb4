"""One comparison: sets both clusters up, sends the cases and plays the histories, and cleans up."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from protocol.kafka import messages
from protocol.kafka.api_keys import VersionRange
from protocol.types import Address
from tools.failures import AdminError
from tools.inspect.conformance.actor import Actor, NotServed, Step
from tools.inspect.conformance.cluster import SILENT, Cluster, is_elsewhere, is_passing
from tools.inspect.conformance.comparing import ABSENT, differences
from tools.inspect.conformance.known import Known
from tools.inspect.conformance.matrix import Case, cases_of, other_cases
from tools.inspect.conformance.normalising import Normaliser, Plain
from tools.inspect.conformance.report import Found
from tools.inspect.conformance.requests import changes_nothing, never_sent, requests
from tools.inspect.conformance.scene import Scene, Where
from tools.inspect.conformance.sequences import HISTORIES

SERVED = "served versions"
ATTEMPTS = 3
PAUSE_S = 0.5
PASSING_TRIES = 20
"""How often a case is tried while a broker only asks for patience: ten seconds."""
READ_PATIENCE_S = (1.0, 4.0)
"""How long one cluster may take after the other has answered: at first, and when the case is tried again."""
WRITE_PATIENCE_S = 6.0
"""Longer: such a case is not tried again, because its first request may have changed something."""
LINES = 8
"""Requests at a time to each cluster."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Side:
    cluster: Cluster
    scene: Scene
    normaliser: Normaliser


@dataclass
class Comparison:
    """`requests` were sent to each cluster. `left_out`: what was not sent, with the reason. `failed`: what could not be compared.

    `known`: differences that need no second look.
    """

    known: Sequence[Known] = ()
    requests: int = 0
    found: list[Found] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    apis: int = 0
    versions: int = 0


async def compare_clusters(
    reference: Address,
    subject: Address,
    seed: int,
    apis: Collection[int] | None = None,
    histories: Collection[str] = tuple(HISTORIES),
    known: Sequence[Known] = (),
    *,
    is_quick: bool = False,
) -> Comparison:
    """`apis` None: all that either advertises. `is_quick`: the newest version of each API only.

    Raises AdminError if a broker cannot be reached.
    """
    word = f"{Random(seed).getrandbits(32):08x}-{Random().getrandbits(24):06x}"
    result = Comparison(known)
    async with (
        _side("reference", reference, f"conform-{word}-r") as ours,
        _side("subject", subject, f"conform-{word}-s") as theirs,
    ):
        sides = (ours, theirs)
        _compare_versions(sides, result, apis)
        reads: list[Case] = []
        writes: dict[int, list[Case]] = {}
        for api_key, served in _common(sides).items():
            if apis is not None and api_key not in apis:
                continue
            if api_key not in requests():
                why = never_sent().get(api_key, f"{messages.api_name(api_key)} is not known to this tool")
                result.left_out.append(f"no request: {why}")
                continue
            asked = VersionRange(served.max, served.max) if is_quick else served
            result.apis += 1
            result.versions += asked.max - asked.min + 1
            cases = list(cases_of(api_key, asked, seed, ours.scene))
            if changes_nothing(api_key):
                reads += cases
            else:
                writes[api_key] = cases
        reads += [case for case in other_cases(_widest(sides)) if apis is None or case.api_key in apis]
        await _compare_reads(sides, reads, result)
        await _compare_writes(sides, writes, result)
        for name in histories:
            try:
                await _compare_history(sides, name, result)
            except AdminError as problem:
                result.failed.append(f"history {name}: {problem}")
    return result


@contextlib.asynccontextmanager
async def _side(name: str, address: Address, run: str) -> AsyncIterator[Side]:
    async with Cluster(name, address, run) as cluster:
        try:
            scene, normaliser = await cluster.set_up()
            yield Side(cluster, scene, normaliser)
        finally:
            failed = sys.exc_info()[1] is not None
            with contextlib.suppress(*([AdminError] if failed else [])):
                await cluster.clean_up()


def _compare_versions(sides: tuple[Side, Side], result: Comparison, apis: Collection[int] | None) -> None:
    ours, theirs = (side.cluster.versions for side in sides)
    for api_key in sorted({*ours, *theirs}):
        if apis is not None and api_key not in apis:
            continue
        row, other = (version_row(versions.get(api_key)) for versions in (ours, theirs))
        for path, reference, subject in differences(row, other):
            result.found.append(Found(messages.api_name(api_key), None, SERVED, path, reference, subject))


def version_row(served: tuple[int, int] | None) -> dict[str, Plain]:
    """What is compared of the oldest and newest version of an API; nothing if it is not served."""
    return {} if served is None else {"oldest": served[0], "newest": served[1]}


def _common(sides: tuple[Side, Side]) -> dict[int, VersionRange]:
    """The APIs and versions that both have."""
    ours, theirs = (side.cluster.versions for side in sides)
    return {
        api_key: VersionRange(max(served.min, theirs[api_key].min), min(served.max, theirs[api_key].max))
        for api_key, served in sorted(ours.items())
        if api_key in theirs
    }


def _widest(sides: tuple[Side, Side]) -> dict[int, VersionRange]:
    """The APIs that both have, from the oldest to the newest version of either."""
    ours, theirs = (side.cluster.versions for side in sides)
    return {
        api_key: VersionRange(min(served.min, theirs[api_key].min), max(served.max, theirs[api_key].max))
        for api_key, served in sorted(ours.items())
        if api_key in theirs
    }


async def _compare_reads(sides: tuple[Side, Side], cases: Sequence[Case], result: Comparison) -> None:
    """Cases that change nothing: LINES at a time, each on a connection of its own."""

    async def compare(line: str, case: Case) -> None:
        await _compare_case(sides, case, line, result)

    await _on_lines(cases, compare)


async def _compare_writes(sides: tuple[Side, Side], cases: Mapping[int, Sequence[Case]], result: Comparison) -> None:
    """API key -> its cases, which change something: one after the other. The APIs run side by side, in topics of their own."""

    async def compare(line: str, api_key: int) -> None:
        try:
            for side in sides:
                await side.cluster.make_topic(side.scene, side.scene.of(api_key, 0).scratch)
            for case in cases[api_key]:
                await _compare_case(sides, case, line, result)
        except AdminError as problem:
            result.failed.append(f"{messages.api_name(api_key)}: {problem}")

    await _on_lines(sorted(cases, key=lambda api_key: len(cases[api_key]), reverse=True), compare)


async def _on_lines(items: Iterable[Item], do: Callable[[str, Item], Awaitable[None]]) -> None:
    """Does each item once: LINES at a time. Raises what the first one that fails raises; the others end."""
    left = iter(items)

    async def take(line: str) -> None:
        for item in left:
            await do(line, item)

    lines = [asyncio.create_task(take(str(line))) for line in range(LINES)]
    try:
        await asyncio.gather(*lines)
    finally:
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)


async def _compare_case(sides: tuple[Side, Side], case: Case, line: str, result: Comparison) -> None:
    """A difference that is not known, and may pass on a busy machine or during an election, is looked at again."""
    outcomes: list[tuple[Plain, Plain]] = []
    for attempt in range(PASSING_TRIES):
        if attempt:
            await asyncio.sleep(PAUSE_S)
        result.requests += 1
        patience_s = READ_PATIENCE_S[min(attempt, 1)] if case.changes_nothing else WRITE_PATIENCE_S
        (ours, our_passes), (theirs, their_passes) = await _outcomes(sides, case, result.requests, line, patience_s)
        outcomes.append((ours, theirs))
        if all(_is_known(one, result.known) for one in _found(case.api_key, case.version, case.name, ours, theirs)):
            break
        if not (our_passes or their_passes) and (
            not case.changes_nothing or outcomes.count((ours, theirs)) > 1 or attempt + 1 >= ATTEMPTS
        ):
            break
    result.found += _found(case.api_key, case.version, case.name, *outcomes[-1])


async def _outcomes(
    sides: tuple[Side, Side], case: Case, number: int, line: str, patience_s: float
) -> list[tuple[Plain, bool]]:
    """What became of the request in each cluster, and whether it may be different in a moment."""
    scenes = [case.scene(side.scene).at(number) for side in sides]
    if case.needs_topic:
        await asyncio.gather(*(_make_fresh(side, scene) for side, scene in zip(sides, scenes, strict=True)))
    try:
        sent = [asyncio.create_task(_send(*one, case, line)) for one in zip(sides, scenes, strict=True)]
        try:
            await _until_silent(sides, sent, patience_s)
        finally:
            for task in sent:
                task.cancel()
            answers = await asyncio.gather(*sent, return_exceptions=True)
    finally:
        if case.needs_topic:
            await asyncio.gather(
                *(side.cluster.delete_topics(scene.fresh) for side, scene in zip(sides, scenes, strict=True))
            )
    found: list[tuple[Plain, bool]] = []
    for side, answer in zip(sides, answers, strict=True):
        if isinstance(answer, asyncio.CancelledError):
            found.append((SILENT, False))
        elif isinstance(answer, BaseException):
            raise answer
        elif isinstance(answer, str):
            found.append((answer, False))
        else:
            found.append((side.normaliser.answer_alone(answer), is_passing(answer)))
    return found


async def _until_silent(sides: tuple[Side, Side], sent: Sequence[asyncio.Task[Any]], patience_s: float) -> None:
    """Returns when both have answered, or when one has and the other is not only slow.

    A broker is silent if it does not answer the request in `patience_s`, then answers another one, and still not the request in
    `patience_s`.
    """
    _, waiting = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
    for _ in range(2):
        if waiting:
            _, waiting = await asyncio.wait(waiting, timeout=patience_s)
        for side, task in zip(sides, sent, strict=True):
            if task in waiting:
                await side.cluster.ping(side.cluster.home_address)


async def _make_fresh(side: Side, scene: Scene) -> None:
    await side.cluster.create_topic(scene.fresh)
    await side.cluster.until_known(scene.fresh)


async def _send(side: Side, scene: Scene, case: Case, line: str) -> Any:
    """An entity of kio's, or a text."""
    cluster = side.cluster
    address = await cluster.address(case.where, case.of(scene))
    data = case.data(scene)
    # A variant may name another group, whose coordinator may be another broker.
    for asked in dict.fromkeys((address, *(cluster.addresses() if case.where is not Where.HOME else ()))):
        answer = await cluster.outcome(
            (asked, line), case.api_key, case.version, data, case.timeout_s, may_be_silent=case.may_be_silent
        )
        if not is_elsewhere(answer):
            break
    return answer


async def _compare_history(sides: tuple[Side, Side], name: str, result: Comparison) -> None:
    common = _common(sides)
    try:
        ours, theirs = await asyncio.gather(*(_play(side, name, common) for side in sides))
    except NotServed as missing:
        result.left_out.append(f"history {name}: not both have {missing}")
        return
    result.requests += len(ours)
    result.found += step_differences(name, ours, theirs)


async def _play(side: Side, name: str, versions: Mapping[int, VersionRange]) -> list[Step]:
    """Raises NotServed and AdminError."""
    readable = {}
    for api_key, served in versions.items():
        if schemas := messages.versions_with_schemas(api_key):
            readable[api_key] = VersionRange(max(served.min, schemas.start), min(served.max, schemas.stop - 1))
    side.normaliser.begin()
    actor = Actor(name, side.cluster, side.scene, side.normaliser, readable)
    await HISTORIES[name](actor)
    return actor.steps


async def played(address: Address, name: str, versions: Mapping[int, VersionRange]) -> list[Step]:
    """The steps of a history in one cluster. Raises NotServed and AdminError."""
    async with _side("subject", address, f"conform-{Random().getrandbits(56):014x}-s") as side:
        return await _play(side, name, versions)


def step_differences(name: str, ours: Sequence[Step], theirs: Sequence[Step]) -> list[Found]:
    found: list[Found] = []
    by_name: dict[str, list[Step | None]] = {}
    for number, steps in enumerate((ours, theirs)):
        for step in steps:
            by_name.setdefault(step.name, [None, None])[number] = step
    for step_name, (our, their) in by_name.items():
        known = our or their
        if known is not None:
            outcomes = [ABSENT if step is None else step.outcome for step in (our, their)]
            found += _found(known.api_key, known.version, f"history {name}: {step_name}", *outcomes)
    return found


def _found(api_key: int, version: int, case: str, ours: Plain, theirs: Plain) -> list[Found]:
    api = messages.api_name(api_key) if api_key >= 0 else "no API"
    return [Found(api, version, case, *one) for one in differences(ours, theirs)]


def _is_known(one: Found, known: Sequence[Known]) -> bool:
    return any(entry.fits(one.api, one.version, one.case, one.path) for entry in known)
