"""Sends requests to a broker's control plane: one request, one answer, over the shared network client (NET-3, FMT-4)."""

from __future__ import annotations

import asyncio

from protocol.network_client import NetworkClient
from protocol.rpc import framing
from protocol.rpc.messages import ControlRequest, ControlResponse

RESPONSE_BYTES_MAX = 32 * 1024**2
"""Limit of a response, for the network client: it fits the errors of a hundred thousand partitions with the longest names."""


class ControlClient:
    """Its `send` raises the network client's Disconnected and RequestTimedOut, and ValueError for a broken answer."""

    def __init__(self, network: NetworkClient) -> None:
        self._network = network

    async def send(self, address: tuple[str, int], request: ControlRequest) -> ControlResponse:
        """The answer of the broker whose control listener is at `address`."""
        answer = await self._network.send(
            address, lambda correlation_id: (framing.request_payload(correlation_id, request),)
        )
        steps = framing.parsing_response(answer)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                response: ControlResponse = end.value[1]
                return response
            await asyncio.sleep(0)

    def disconnect(self, address: tuple[str, int]) -> None:
        """Closes the connection, if there is one; requests in flight fail."""
        self._network.disconnect(address)
