"""To be imported before kio: keeps it from loading hypothesis, which it does wherever that is installed.

kio registers test strategies for its types then. In a developer's environment that would cost each starting broker more
than a second and leave a `.hypothesis` folder in its directory.
"""

from __future__ import annotations

import sys

if "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # Python's way to make its import fail
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]
