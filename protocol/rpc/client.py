"""Asking a broker's control plane: one request, one answer, over the shared network client (NET-3, FMT-4)."""

from __future__ import annotations

from protocol.network_client import NetworkClient
from protocol.rpc import framing
from protocol.rpc.messages import ControlRequest, ControlResponse


class ControlClient:
    """What `send` raises is the network client's: Disconnected or RequestTimedOut; ValueError for a broken answer."""

    def __init__(self, network: NetworkClient) -> None:
        self._network = network

    async def send(self, address: tuple[str, int], request: ControlRequest) -> ControlResponse:
        """The answer of the broker whose control listener is at `address`."""
        answer = await self._network.send(
            address, lambda correlation_id: (framing.request_payload(correlation_id, request),)
        )
        return framing.parse_response(answer)[1]

    def disconnect(self, address: tuple[str, int]) -> None:
        """Closes the connection, if there is one; what is under way fails."""
        self._network.disconnect(address)
