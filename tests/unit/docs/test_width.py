"""Text wraps at 140 columns, as CONTRIBUTING asks; tables, code and pictures are as wide as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.docs.pages import PAGES, name_of, prose, text_of

COLUMNS = 140


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_text_wraps(page: Path) -> None:
    lines = prose(text_of(page)).splitlines()
    assert [line for line in lines if len(line) > COLUMNS and line.lstrip()[:1] not in ("|", "<")] == []
