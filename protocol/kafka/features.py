"""The features of a cluster (KIP-584) that ApiVersions names at each level. A ZooKeeper cluster, and so level 3.9, has none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from protocol.kafka.api_keys import ApiLevel, VersionRange

TRANSACTION_VERSION = "transaction.version"
"""Whether transactions are those of KIP-890 (2)."""


class Feature(NamedTuple):
    """`finalized`: the version that the cluster uses, one of `supported`."""

    supported: VersionRange
    finalized: int


FEATURES: Mapping[ApiLevel, Mapping[str, Feature]] = MappingProxyType(
    {
        ApiLevel.KAFKA_3_9: MappingProxyType({}),
        ApiLevel.KAFKA_4: MappingProxyType(
            {
                "group.version": Feature(VersionRange(0, 1), 1),
                TRANSACTION_VERSION: Feature(VersionRange(0, 2), 2),
            }
        ),
    }
)
"""Level -> name -> feature: those of Kafka's features that ottla has, each in Kafka's name and versions."""


def finalized(level: ApiLevel, name: str) -> int:
    """The version of the feature that the cluster uses at this level; 0, as in Kafka, if it does not have the feature."""
    feature = FEATURES[level].get(name)
    return 0 if feature is None else feature.finalized
