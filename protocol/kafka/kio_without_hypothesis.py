"""Import this before kio: it keeps kio from loading hypothesis if that is installed.

kio would register test strategies for its types. In a developer's environment that would cost each starting broker more than a
second and leave a `.hypothesis` folder in its directory.
"""

from __future__ import annotations

import sys

if "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # Python's way to make its import fail
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]
