"""Text wraps at 140 columns, as CONTRIBUTING asks; tables, code and pictures are as wide as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.docs.pages import PAGES, name_of, prose, text_of

COLUMNS = 140
RAGGED = {"docs/OPERATING.md", "docs/PERFORMANCE.md", "docs/SCALE.md"}


@pytest.mark.parametrize("page", [page for page in PAGES if name_of(page) not in RAGGED], ids=name_of)
def test_text_wraps(page: Path) -> None:
    lines = prose(text_of(page)).splitlines()
    assert [line for line in lines if len(line) > COLUMNS and line.lstrip()[:1] not in ("|", "<")] == []
