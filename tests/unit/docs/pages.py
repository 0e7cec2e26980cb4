"""The pages for readers, and their parts."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(text: str) -> str:
    """The text without the blocks of code."""
    return BLOCK.sub("", text)


def blocks(text: str, kind: str) -> list[str]:
    return [block for language, block in BLOCK.findall(text) if language == kind]


def anchors(text: str) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(prose(text))}


def section(text: str, heading: str) -> str:
    """The text from this heading to the next `## `."""
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> list[list[str]]:
    """The tables' rows, without heads and rules. No cell has a `|`."""
    tables = re.findall(r"(?:^\|.*\n)+", f"{text}\n", re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def load_script(path: str) -> ModuleType:
    """A script beside the pages, which is in no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
