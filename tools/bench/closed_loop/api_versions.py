"""The versions of Produce and Fetch that a load may have. Pure.

Clients of different ages send different ones. Fetch v13 and later name a topic by its id.
"""

from __future__ import annotations

PRODUCE_VERSION, PRODUCE_VERSIONS = 9, range(3, 12)
FETCH_VERSION, FETCH_VERSIONS = 12, range(4, 13)
"""The version of a load that names none, and all of them."""
