"""The moving picture of the README shows what was recorded, and is drawn by the script beside it."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.unit.docs.pages import load_script

maker = load_script("docs/images/make_terminal_picture.py")


def test_the_picture_is_that_of_the_record() -> None:
    drawn = maker.drawn(maker.RECORD.read_text(encoding="utf-8"))
    assert maker.PICTURE.read_text(encoding="utf-8") == drawn
    names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(drawn).iter()}
    assert names <= {"svg", "title", "style", "rect", "circle", "text", "tspan"}, (
        "no script, and nothing from elsewhere"
    )


def test_the_record_has_the_commands_and_a_verdict() -> None:
    lines = maker.RECORD.read_text(encoding="utf-8").splitlines()
    assert [line[2:] for line in lines if line.startswith("$ ")] == list(maker.COMMANDS)
    assert "PASSED  clean: 0 findings" in lines
