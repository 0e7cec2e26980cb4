"""The tables of docs/CONFORMANCE.md: `python -m tools.inspect.conformance.page` writes them into the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from protocol.kafka import messages
from protocol.kafka.api_keys import ADVERTISED, ApiLevel
from tools.inspect.conformance.comparing import differences
from tools.inspect.conformance.conformance_command import KNOWN_DIFFERENCES, OF_LEVEL_4, known_at, read_known
from tools.inspect.conformance.known import Known, known_rows
from tools.inspect.conformance.run import SERVED, version_row

PAGE = Path(__file__).resolve().parents[3] / "docs" / "CONFORMANCE.md"
KAFKAS_VERSIONS = {
    ApiLevel.KAFKA_3_9: Path(__file__).with_name("kafka_3_9_1.yaml"),
    ApiLevel.KAFKA_4: Path(__file__).with_name("kafka_4_1_1.yaml"),
}
RELEASES = {ApiLevel.KAFKA_3_9: "Kafka 3.9.1", ApiLevel.KAFKA_4: "Kafka 4.1.1"}
KNOWN_HEAD = ("API", "versions", "what differs", "why")


def kafkas_versions(level: ApiLevel = ApiLevel.KAFKA_3_9) -> dict[int, tuple[int, int]]:
    """API key -> oldest and newest version that Kafka advertises: 3.9.1 in ZooKeeper mode, 4.1.1 in KRaft mode."""
    rows = yaml.safe_load(KAFKAS_VERSIONS[level].read_text())
    return {key: (oldest, newest) for key, (oldest, newest) in rows.items()}


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


def tables() -> dict[str, str]:
    """Name of a table in the page -> its lines. The differences at level 4 are those beside the others."""
    return {
        "versions": _versions(ApiLevel.KAFKA_3_9),
        "differences": _differences(KNOWN_DIFFERENCES),
        "versions at level 4": _versions(ApiLevel.KAFKA_4),
        "differences at level 4": _differences(OF_LEVEL_4),
    }


def served_at(level: ApiLevel) -> dict[int, tuple[int, int]]:
    """API key -> oldest and newest version that ottla advertises."""
    return {int(key): (oldest, newest) for key, (oldest, newest) in ADVERTISED[level].items()}


def _versions(level: ApiLevel) -> str:
    head = ("API", "key", RELEASES[level], "ottla", "why")
    return _table(head, version_rows(kafkas_versions(level), served_at(level), known_at(level)))


def _differences(file: Path) -> str:
    return _table(KNOWN_HEAD, known_rows([entry for entry in read_known(file) if SERVED not in entry.cases]))


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
    PAGE.write_text(with_tables(PAGE.read_text(), tables()))


if __name__ == "__main__":
    main()
