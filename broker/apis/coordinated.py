"""While ZooKeeper is silent, a coordinator confirms that it still is one before it answers from memory: `coordination/confirmation.py`.

Meanwhile the connection's next requests wait. So requests that clients send many of, such as commits, are none of these.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from typing import Any

from broker.coordination.confirmation import Certainty
from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from broker.requests.steps import Further

Handler = Callable[[ApiContext, Request], Further]


def by_group_coordinator(handler: Handler) -> Handler:
    """The handler of a request to a group's coordinator (INV-23, INV-24)."""
    return _certainly(handler, attrgetter("groups"))


def by_transaction_coordinator(handler: Handler) -> Handler:
    """The handler of a request to a transactional id's coordinator (TXN-4)."""
    return _certainly(handler, attrgetter("transactions"))


def _certainly(handler: Handler, coordinator: attrgetter[Any]) -> Handler:
    @wraps(handler)
    def handle(context: ApiContext, request: Request) -> Further:
        ownership = coordinator(context).ownership
        if ownership.is_certain():
            return handler(context, request)
        return _when_certain(ownership, handler, context, request)

    return handle


async def _when_certain(ownership: Certainty, handler: Handler, context: ApiContext, request: Request) -> None:
    await ownership.confirm()
    further = handler(context, request)
    if further is not None:
        await further
