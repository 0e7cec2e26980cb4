"""How many requests rules have hit, by the event logs of the brokers, or of the links."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

KIND = "request_fault"


def request_hits(directory: Path, since_ms: float = 0.0) -> Counter[str]:
    """Rule -> requests since then, in Unix milliseconds. `directory`: of a local cluster, or of links."""
    found: Counter[str] = Counter()
    for path in directory.glob("broker-*/events.jsonl"):
        for line in path.read_text(errors="replace").splitlines(keepends=True):
            if f'"{KIND}"' in line and line.endswith("\n"):  # the last one may be half written
                event = json.loads(line)
                if event.get("time_ms", 0) >= since_ms:
                    found[event["rule"]] += 1
    return found
