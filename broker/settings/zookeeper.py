"""How this broker reaches ZooKeeper, from its settings (`protocol/zk/access.py`)."""

from __future__ import annotations

import asyncio
import logging

from broker.settings.config import BrokerConfig, ConfigError, attribute, settings_of
from broker.settings.tls import LOOK_S
from protocol.zk.access import BadAccess, ZooKeeperAccess, ZooKeeperTls, zookeeper_access

log = logging.getLogger(__name__)


def access_of(config: BrokerConfig) -> ZooKeeperAccess:
    """Reads the files of certificates. Raises ConfigError."""
    keys = [key for key in settings_of(BrokerConfig) if key.startswith("zookeeper.")]
    try:
        return zookeeper_access({key: str(getattr(config, attribute(key))) for key in keys})
    except BadAccess as problem:
        raise ConfigError(str(problem)) from None


async def follow(tls: ZooKeeperTls | None) -> None:
    """Looks for files that have changed, until cancelled. Connections keep what they have; the next one takes the new."""
    while tls is not None:
        await asyncio.sleep(LOOK_S)
        if await tls.read_again():
            log.info("the certificates for ZooKeeper were read again; the connection stays")
