"""`ottla bench compare`, `cost` and `profile`, each once for seconds: that they work, and not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import ottla
from tests.support.kafka_tools import KafkaTools
from tools.bench.compare.clusters import running_ottla
from tools.bench.compare.rounds import ClusterRound
from tools.bench.compare.rows import chosen
from tools.bench.real_kafka.jars import KafkaJars

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.mark.thorough
def test_rows_of_our_cluster_are_measured(tmp_path: Path) -> None:
    rows = chosen(["all-20x1-100b", "fetch-64k", "librdkafka-produce"])
    with running_ottla(tmp_path / "cluster") as cluster:
        one = ClusterRound(cluster, KafkaJars(tmp_path), seconds=1.0, warm_up_s=0.5)
        for row in rows:
            figure = one.figure(row)
            assert figure.rate > 0
            assert figure.p99_ms is not None
            assert figure.cpu_s_per_mb is not None
            cluster.look()
        found = cluster.resources()
        assert found.memory_bytes > 1_000_000
        assert found.open_files > 10
        assert found.start_s > 0
        assert not any(path for data in cluster.data for path in data.glob("ottla-bench-*"))


@pytest.mark.kafka
@pytest.mark.release
def test_our_cluster_beside_a_real_kafka(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    files = {name: tmp_path / f"compared.{name}" for name in ("json", "markdown", "svg")}
    options = " ".join(f"--{name} {file}" for name, file in files.items())
    done = ottla(f"bench compare --rounds 1 --seconds 2 --rows produce-20x1-100b,perf-produce,perf-consume {options}")
    assert done.exit_code == 0, done.output
    found = json.loads(files["json"].read_text())
    assert [row["key"] for row in found["rows"]] == ["produce-20x1-100b", "perf-produce", "perf-consume"]
    for row in found["rows"]:
        assert {name: len(rounds) for name, rounds in row["figures"].items()} == {"Kafka": 1, "ottla": 1}
        assert row["ratio"]["median"] > 0
    assert set(found["resources"]) == {"Kafka", "ottla"}
    assert "| produce acks=1, 20 x 1, 100 B |" in files["markdown"].read_text()
    assert "<svg" in files["svg"].read_text()
    assert "RATIO" in done.stdout


def test_a_flame_graph_of_a_broker_under_load(tmp_path: Path) -> None:
    file = tmp_path / "produce.svg"
    done = ottla(f"bench profile --load produce-20x1-100b --seconds 1 --out {file}")
    assert done.exit_code == 0, done.output
    drawn = file.read_text()
    assert "<svg" in drawn
    assert "broker/" in drawn


@pytest.mark.thorough
def test_what_a_request_costs_a_broker() -> None:
    done = ottla(
        "bench cost --load produce-20x1-100b-v7,fetch-64k --rounds 1 --seconds 0.2 --plain "
        "--beside broker.fault.injection=true --format json"
    )
    assert done.exit_code == 0, done.output
    costs = json.loads(done.stdout)["costs"]
    assert {row: {form: len(rounds) for form, rounds in forms.items()} for row, forms in costs.items()} == {
        row: {"ottla": 1, "ottla, broker.fault.injection=true": 1} for row in ("produce-20x1-100b-v7", "fetch-64k")
    }
    assert all(0 < each < 10_000 for forms in costs.values() for rounds in forms.values() for each in rounds)
