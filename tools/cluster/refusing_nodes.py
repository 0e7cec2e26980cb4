"""Nodes that the metadata lists, and that are gone: a broker that was killed stays registered until its ZooKeeper session ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Collection

from tools.admin.cluster_view import NodeView

CONNECT_TIMEOUT_S = 2.0
ASKED_AT_ONCE = 64
"""Limit of the nodes that are asked; the metadata decides alone about further ones."""


def refusing(nodes: Collection[NodeView]) -> dict[int, str]:
    """Node -> why it counts as down: its port refuses connections. One that is only slow, or not reachable from here, is left out."""
    found: dict[int, str] = {}

    def ask(node: NodeView) -> None:
        try:
            with socket.create_connection((node.host, node.port), CONNECT_TIMEOUT_S):
                pass
        except ConnectionRefusedError:
            found[node.id] = f"registered, but does not answer: {node.host}:{node.port} refuses connections"
        except (OSError, UnicodeError):
            return

    asked = [threading.Thread(target=ask, args=(node,), daemon=True) for node in list(nodes)[:ASKED_AT_ONCE]]
    for thread in asked:
        thread.start()
    deadline = time.monotonic() + CONNECT_TIMEOUT_S  # looking up a name may take longer
    for thread in asked:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(sorted(found.items()))
