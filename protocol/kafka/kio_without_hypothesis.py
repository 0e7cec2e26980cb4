"""Import this module before kio: it keeps kio from loading hypothesis, if that is installed.

kio would register test strategies for its types. In a developer's environment this would delay the start of each broker by more than
a second, and leave a `.hypothesis` folder in the broker's working directory.
"""

from __future__ import annotations

import sys

if "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # makes its import fail
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]
