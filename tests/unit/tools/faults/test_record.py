"""What is not healed yet is in a file that survives bad contents and other processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.faults.record import FaultRecord, Noted
from tools.faults.words import parse_words


def test_faults_are_noted_and_struck_out(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "unhealed.json"
    record = FaultRecord(file)
    kill = record.note(parse_words("kill leader t-0"), 2)
    cut = record.note(parse_words("cut broker 3 from peers one-way in for 5s"), 3)
    assert FaultRecord(file).all() == [kill, cut]
    assert [row.words.verb for row in record.all()] == ["kill", "cut"]
    assert record.brokers_with("leader of t-0") == [2]
    assert record.brokers_with("controller") == []
    record.strike(lambda row: row.broker == 2)
    assert record.all() == [cut]
    record.strike(lambda _: True)
    assert record.all() == []
    assert not file.exists()


@pytest.mark.parametrize(
    "text", ["", "[", "{}", "[1]", '[{"said": "drown broker 1", "broker": 1}]', '[{"said": "heal"}]']
)
def test_a_damaged_record_is_no_obstacle(tmp_path: Path, text: str) -> None:
    file = tmp_path / "unhealed.json"
    file.write_text(text)
    record = FaultRecord(file)
    assert record.all() == []
    assert record.note(parse_words("pause zookeeper"), None) == Noted("pause zookeeper", None)
    assert record.all() == [Noted("pause zookeeper", None)]
