"""Asks the controller to move this broker's leaderships away before it stops (STA-2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from broker.settings.config import BrokerConfig
from protocol.errors import ErrorCode
from protocol.network_client import Disconnected, RequestTimedOut
from protocol.rpc.client import ControlClient
from protocol.rpc.messages import ControlledShutdownRequest
from protocol.zk.session import NoNode, ZkError, ZooKeeperSession
from protocol.zk.znodes import BrokerIdZNode, ControllerZNode

log = logging.getLogger(__name__)


class ControllerUnknown(Exception):
    """There is no controller, or it is not registered, or it has no control listener. The text says which."""


class ControlledShutdownClient:
    """Looks up the controller in ZooKeeper for each attempt, because the controller may change. This broker may be the controller."""

    def __init__(
        self,
        config: BrokerConfig,
        zk: ZooKeeperSession,
        client: ControlClient,
        control_listener: str,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._config = config
        self._zk = zk
        self._client = client
        self._control_listener = control_listener
        self._broker_epoch = broker_epoch

    async def controlled_shutdown(self) -> bool:
        """Returns True when the controller reports that this broker leads no partition with several replicas; False after all attempts."""
        attempts = self._config.controlled_shutdown_max_retries + 1
        for attempt in range(1, attempts + 1):
            remaining = await self._attempt()
            if remaining == 0:
                return True
            if attempt < attempts:
                await asyncio.sleep(self._config.controlled_shutdown_retry_backoff_ms / 1000)
        log.warning("controlled shutdown did not succeed in %d attempts: stopping anyway", attempts)
        return False

    async def _attempt(self) -> int | None:
        """The number of partitions with several replicas that this broker still leads; None if there was no answer or an error."""
        try:
            address = await self._address()
            request = ControlledShutdownRequest(self._config.broker_id, self._broker_epoch())
            response = await self._client.send(address, request)
        except (ControllerUnknown, ZkError, Disconnected, RequestTimedOut, ValueError) as error:
            log.info("controlled shutdown: %s", error)
            return None
        if response.error is not ErrorCode.NONE:
            log.info("controlled shutdown: the controller answers %s", response.error.name)
            return None
        if response.partitions:
            log.info("controlled shutdown: this broker still leads %d partitions", len(response.partitions))
        return len(response.partitions)

    async def _address(self) -> tuple[str, int]:
        try:
            data, _ = await self._zk.get(ControllerZNode.PATH)
            controller = ControllerZNode.decode(data)
            data, stat = await self._zk.get(BrokerIdZNode.path(controller))
            broker = BrokerIdZNode.decode(controller, data, stat.czxid)
        except NoNode as error:
            raise ControllerUnknown(f"no controller, or it is not registered: {error}") from None
        endpoint = broker.endpoint(self._control_listener)
        if endpoint is None:
            raise ControllerUnknown(f"broker {controller} has no listener {self._control_listener}")
        return endpoint.host, endpoint.port
