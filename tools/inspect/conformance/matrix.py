"""The cases of every API and version: requests that stand alone."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey, VersionRange
from tools.inspect.conformance.cluster import ANSWER_TIMEOUT_S, CLIENT_ID, SILENCE_S
from tools.inspect.conformance.requests import Body, changes_nothing, complete, requests
from tools.inspect.conformance.scene import Scene, Where
from tools.inspect.conformance.variants import (
    Variant,
    broken_frames,
    encoded,
    mixed_bodies,
    odd_bodies,
    other_version,
    sized,
    strange_frames,
)

READ_TIMEOUT_S = 8.0
"""How long the answer to a request that changes nothing may take."""
MIXED = 6
"""Requests with two odd fields, of each API and version."""
CORRELATION_ID = 7
WELL = "well-formed"


@dataclass(frozen=True)
class Case:
    """One request. `data` makes its bytes with the names of a scene."""

    api_key: int
    version: int
    name: str
    data: Callable[[Scene], bytes]
    where: Where
    timeout_s: float = ANSWER_TIMEOUT_S
    may_be_silent: bool = False
    needs_topic: bool = False
    """A topic with the scene's fresh name is made before, and deleted after."""

    @property
    def changes_nothing(self) -> bool:
        return self.api_key < 0 or changes_nothing(self.api_key)

    def scene(self, scene: Scene) -> Scene:
        """The part of a cluster's scene that the request has for itself."""
        return scene if self.changes_nothing else scene.of(self.api_key, self.version)

    def of(self, scene: Scene) -> str:
        """The group or transactional id whose coordinator gets the request."""
        if self.where is Where.GROUP:
            return scene.fresh if self.api_key == ApiKey.JOIN_GROUP else scene.group
        return scene.transactional_id if self.where is Where.TRANSACTION else ""


class _Unsayable(Exception):
    """The schema of the version cannot say it."""


def cases_of(api_key: int, served: VersionRange, seed: int, scene: Scene) -> Iterator[Case]:
    """The cases of the API in these versions. `scene` has the lengths and ids of any scene: two cases whose bytes are equal are one."""
    schemas = messages.versions_with_schemas(api_key)
    for version in range(max(served.min, schemas.start), min(served.max, schemas.stop - 1) + 1):
        seen: set[bytes] = set()
        alone = scene if changes_nothing(api_key) else scene.of(api_key, version)
        for case in _cases_of_version(api_key, version, seed, alone):
            try:
                data = case.data(alone)
            except _Unsayable:
                continue
            if data not in seen:
                seen.add(data)
                yield case


def other_cases(served: dict[int, VersionRange]) -> Iterator[Case]:
    """Requests of versions and APIs that no broker has, and bytes that are no request."""
    for api_key, (oldest, newest) in sorted(served.items()):
        for version in (-1, newest + 1, newest + 100):
            if not oldest <= version <= newest:
                yield Case(
                    api_key,
                    version,
                    f"version {'-1' if version < 0 else 'above the newest' if version == newest + 1 else 'far above'}",
                    _other_version(version, api_key),
                    Where.HOME,
                )
    for name, data in strange_frames(_any_frame()):
        yield Case(-1, 0, name, lambda _, data=data: data, Where.HOME, SILENCE_S)  # type: ignore[misc]


def _any_frame() -> bytes:
    return messages.encode_request(ApiKey.METADATA, 1, CORRELATION_ID, CLIENT_ID, {"topics": []})


def _other_version(version: int, api_key: int) -> Callable[[Scene], bytes]:
    frame = api_key.to_bytes(2, "big") + _any_frame()[2:]
    return lambda _: other_version(frame, version)


def _cases_of_version(api_key: int, version: int, seed: int, scene: Scene) -> Iterator[Case]:
    request = requests()[api_key]
    schema = messages.request_schema(api_key, version)

    def case(name: str, body: Callable[[Scene], Body]) -> Case:
        return Case(
            api_key,
            version,
            name,
            lambda scene: sized(_frame(api_key, version, body(scene))),
            request.where,
            READ_TIMEOUT_S if changes_nothing(api_key) else ANSWER_TIMEOUT_S,
            may_be_silent=api_key == ApiKey.PRODUCE and "acks" in name,
            needs_topic=api_key == ApiKey.DELETE_TOPICS,
        )

    def well_formed(scene: Scene) -> Body:
        return complete(schema, request.body(scene))

    yield case(WELL, well_formed)
    for special in request.special:
        yield case(special, lambda scene, name=special: complete(schema, request.special_body(name, scene)))  # type: ignore[misc]

    # A variant is found again by its name, because the bodies of the clusters have other names and ids in them.
    def odd(scene: Scene) -> Iterator[Variant]:
        return odd_bodies(api_key, schema, well_formed(scene), scene)

    def mixed(scene: Scene) -> Iterator[Variant]:
        return mixed_bodies(api_key, schema, well_formed(scene), scene, seed, MIXED)

    for variants in (odd, mixed):
        for name, _ in variants(scene):
            yield case(name, _named(variants, name))

    def broken(scene: Scene) -> Iterator[tuple[str, bytes]]:
        return broken_frames(api_key, version, schema, _frame(api_key, version, well_formed(scene)))

    for name, _ in broken(scene):
        yield Case(
            api_key,
            version,
            name,
            lambda scene, name=name: dict(broken(scene))[name],  # type: ignore[misc]
            request.where,
            needs_topic=api_key == ApiKey.DELETE_TOPICS,
        )


def _named(variants: Callable[[Scene], Iterator[Variant]], name: str) -> Callable[[Scene], Body]:
    def body(scene: Scene) -> Body:
        for found, made in variants(scene):
            if found == name:
                return made()
        raise _Unsayable

    return body


def _frame(api_key: int, version: int, body: Body) -> bytes:
    try:
        return encoded(api_key, version, CORRELATION_ID, CLIENT_ID, body)
    except (TypeError, ValueError, KeyError, AttributeError, struct.error):
        raise _Unsayable from None
