"""The tables of docs/CONFORMANCE.md: `python -m tools.inspect.conformance.page` writes them into the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from protocol.kafka import messages
from protocol.kafka.api_keys import ADVERTISED
from tools.inspect.conformance.comparing import differences
from tools.inspect.conformance.conformance_command import KNOWN_DIFFERENCES, read_known
from tools.inspect.conformance.known import Known, known_rows
from tools.inspect.conformance.run import SERVED, version_row

PAGE = Path(__file__).resolve().parents[3] / "docs" / "CONFORMANCE.md"
KAFKAS_VERSIONS = Path(__file__).with_name("kafka_3_9_1.yaml")
VERSIONS_HEAD = ("API", "key", "Kafka 3.9.1", "ottla", "why")
KNOWN_HEAD = ("API", "versions", "what differs", "why")


def kafkas_versions() -> dict[int, tuple[int, int]]:
    """API key -> oldest and newest version that Kafka 3.9.1 advertises in ZooKeeper mode."""
    return {key: (oldest, newest) for key, (oldest, newest) in yaml.safe_load(KAFKAS_VERSIONS.read_text()).items()}


def version_rows(
    kafkas: Mapping[int, tuple[int, int]], ours: Mapping[int, tuple[int, int]], known: Sequence[Known]
) -> list[tuple[str, ...]]:
    """The APIs whose versions differ. The reason is empty if no entry has it."""
    rows: list[tuple[str, ...]] = []
    for key in sorted({*kafkas, *ours}):
        name = messages.api_name(key)
        found = list(differences(version_row(kafkas.get(key)), version_row(ours.get(key))))
        if found:
            reasons = {
                entry.why
                for one in found
                for entry in known
                if SERVED in entry.cases and entry.fits(name, None, SERVED, one.path)
            }
            rows.append((name, str(key), _shown(kafkas.get(key)), _shown(ours.get(key)), " ".join(sorted(reasons))))
    return rows


def tables(known: Sequence[Known]) -> dict[str, str]:
    """Name of a table in the page -> its lines."""
    others = [entry for entry in known if SERVED not in entry.cases]
    served = {int(key): (oldest, newest) for key, (oldest, newest) in ADVERTISED.items()}
    return {
        "versions": _table(VERSIONS_HEAD, version_rows(kafkas_versions(), served, known)),
        "differences": _table(KNOWN_HEAD, known_rows(others)),
    }


def with_tables(page: str, found: Mapping[str, str]) -> str:
    """The page with these tables between its marks, `<!-- NAME -->` and `<!-- end of NAME -->`."""
    for name, table in found.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        page = before + begin + table + end + rest.partition(end)[2]
    return page


def _shown(versions: tuple[int, int] | None) -> str:
    if versions is None:
        return "–"
    return "-".join(map(str, dict.fromkeys(versions)))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text(), tables(read_known(KNOWN_DIFFERENCES))))


if __name__ == "__main__":
    main()
