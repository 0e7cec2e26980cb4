"""`ottla timeline`: where the logs come from, what it prints and refuses."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cli import COMMAND
from tests.unit.tools.timeline.test_story import FIELDS
from tools.cli import main
from tools.cluster.processes import ClusterError
from tools.timeline import sources
from tools.timeline.drawing import Drawing
from tools.timeline.merging import Event
from tools.timeline.sentences import SENTENCES

RECORDED = Path(__file__).parents[3] / "recorded" / "failover"


def timeline(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["timeline", *map(str, arguments)])


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """A local cluster that has ended, with the recorded logs."""
    for broker in (1, 2, 3):
        (tmp_path / f"broker-{broker}").mkdir()
        (tmp_path / f"broker-{broker}" / "server.properties").write_text(f"broker.id={broker}\n")
        shutil.copy(RECORDED / f"broker-{broker}.jsonl", tmp_path / f"broker-{broker}" / "events.jsonl")
    shutil.copy(RECORDED / "faults.jsonl", tmp_path)
    return tmp_path


def test_the_logs_of_a_run_directory(run_directory: Path) -> None:
    done = timeline("--dir", run_directory)
    assert done.exit_code == 0
    assert "of one clock" in done.output
    assert "kill the process of broker 2" in done.output
    assert "cluster_started" not in done.output


def test_a_rotated_log_is_read_from_its_beginning(run_directory: Path) -> None:
    log = run_directory / "broker-1" / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    whole = timeline("--dir", run_directory, "--all").output
    log.with_name("events.jsonl.1").write_text("".join(lines[:40]))
    log.write_text("".join(lines[40:]))
    assert timeline("--dir", run_directory, "--all").output == whole


def test_the_last_part_and_everything(run_directory: Path) -> None:
    everything = timeline("--dir", run_directory, "--all", "--format", "json").output.splitlines()
    last = timeline("--dir", run_directory, "--since", "5s", "--format", "json").output.splitlines()
    times = [json.loads(line)["time_ms"] for line in everything]
    assert times == sorted(times)
    assert last == [] or json.loads(last[0])["time_ms"] >= max(times) - 5000 - 1
    assert len(last) < len(everything)
    assert "start the cluster" in json.loads(everything[0])["text"]


def test_raw_events_have_one_order_and_say_whose_they_are(run_directory: Path) -> None:
    rows = [json.loads(line) for line in timeline("--dir", run_directory, "--raw", "--broker", "1").output.splitlines()]
    assert {row["source"] for row in rows} == {1, "faults"}
    assert rows[0]["kind"] == "broker_killed"
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)


def test_one_topic(run_directory: Path) -> None:
    lines = [
        json.loads(line)
        for line in timeline("--dir", run_directory, "--topic", "orders", "--format", "json").output.splitlines()
    ]
    named = {name for line in lines for name in line["partitions"] if line["broker"] is not None}
    assert named == {"orders-0", "orders-1", "orders-2", "orders-3"}


def test_the_broker_of_a_file_without_a_name_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "copied.jsonl"
    file.write_text('{"time_ms":1,"kind":"registered","broker":7,"broker_epoch":1,"session":1}\n')
    assert [source.broker for source in sources.of_files([file]).logs] == [7]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--dir", "nowhere"], "there is no cluster in nowhere: give --dir, --compose, or the event logs"),
        (["nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["unknown.jsonl"], "not clear which broker wrote it; name the file or its directory broker-ID"),
        (["broker-1.jsonl", "sub/broker-1.jsonl"], "are both event logs of broker 1"),
        (["broker-1.jsonl"], "the event logs are empty"),
        (["broker-1.jsonl", "--dir", "."], "FILES, --dir and --compose cannot be used together"),
        (["--all", "--since", "3s"], "--all and --since cannot be used together"),
        (["--since", "soon"], "'soon' is not a duration"),
        (["--raw", "--format", "json"], "--raw prints JSON already"),
        (["--follow", "--html", "x"], "--follow and --html cannot be used together"),
        (["--errors", "x"], "--errors is for --html"),
        (["--broker", "x"], "'x' is not a valid integer"),
    ],
)
def test_what_is_refused(arguments: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("unknown.jsonl", "broker-1.jsonl", "sub/broker-1.jsonl"):
        Path(name).touch()
    done = timeline(*arguments)
    assert done.exit_code in (1, 2)
    assert reason in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "row 1: expected an object"),
        ('{"time_ms": 1}', "row 1: expected an object"),
        ('{"time_ms": "1", "error": "x"}', "row 1: expected an object"),
    ],
)
def test_errors_of_clients_are_checked(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "errors.json").write_text(text)
    with pytest.raises(ClusterError, match=re.escape(reason)):
        sources.read_errors(tmp_path / "errors.json")


# -- the page ---------------------------------------------------------------------------------------------------------


def page(directory: Path, *more: str | Path) -> str:
    out = directory / "page.html"
    done = timeline("--dir", directory, "--html", out, *more)
    assert done.exit_code == 0, done.output
    return out.read_text()


def data_of(page: str) -> dict[str, Any]:
    text = page.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    data: dict[str, Any] = json.loads(text)
    return data


def test_the_page_has_lanes_arrows_bands_and_errors(run_directory: Path) -> None:
    data = data_of(page(run_directory, "--errors", RECORDED / "clients" / "errors.jsonl"))
    assert data["brokers"] == [1, 2, 3]
    requests = [arrow for arrow in data["arrows"] if not arrow["answer"] and arrow["t"] > 0]
    assert {arrow["request"] for arrow in requests} >= {"LeaderAndIsr", "UpdateMetadata"}
    assert all(arrow["from"] == 1 and (arrow["until"] is None or arrow["until"] >= arrow["t"]) for arrow in requests)
    assert {arrow["to"] for arrow in requests} == {1, 2, 3}
    killed = data["absences"][0]
    assert (killed["broker"], killed["what"], killed["t"]) == (2, "killed", 0)
    assert [(term["broker"], term["what"]) for term in data["terms"]] == [
        (2, "controller, epoch 1"),
        (1, "controller, epoch 2"),
    ]
    leaders = [state[1] for state in data["partitions"]["orders-1"]["states"]]
    assert leaders[0] == 2
    assert leaders[-1] == 3
    assert next(iter(data["partitions"])) == "orders-1", "the partition whose leader changed comes first"
    offsets = data["partitions"]["orders-1"]["offsets"]
    assert [high for _, high, _ in offsets] == sorted(high for _, high, _ in offsets)
    assert {error["client"] for error in data["errors"]} == {"producer", "reader-1"}


def test_the_page_is_self_contained_and_escapes_what_brokers_wrote(run_directory: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>"
    row = {"time_ms": 1795426616074, "kind": "group_state", "group": hostile, "after": "Stable", "cause": hostile}
    log = run_directory / "broker-1" / "events.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] + [row]
    log.write_text("".join(json.dumps(each) + "\n" for each in sorted(rows, key=lambda each: each["time_ms"])))
    text = page(run_directory)
    assert "<img" not in text
    assert "&lt;img src=x" in text
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    assert "default-src 'none'" in text
    assert any(hostile in line["text"] for line in data_of(text)["lines"])


@given(st.sampled_from(sorted(SENTENCES)), FIELDS, st.none() | st.integers(0, 3))
def test_a_damaged_line_is_not_drawn(kind: str, fields: dict[str, Any], broker: int | None) -> None:
    drawing = Drawing(0.0)
    drawing.add(Event(1.0, broker, kind, {"time_ms": 1, "kind": kind, **fields}))
    json.dumps(drawing.to_json(0.0, 2.0, [], None))


# -- containers -------------------------------------------------------------------------------------------------------


class Docker:
    """`docker cp`, of containers `kafka-1` and so on, as files in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker_ids = (1, 2)

    def broker(self, broker_id: int) -> Container:
        return Container(f"kafka-{broker_id}")

    def command(self, *arguments: str) -> str:
        verb, source, target = arguments
        container, _, path = source.partition(":")
        file = self.directory / container / Path(path).name
        if verb != "cp" or not file.exists():
            raise ClusterError(f"docker {verb}: could not find {source}")
        shutil.copy(file, target)
        return ""


@dataclass(frozen=True)
class Container:
    name: str


def test_the_logs_of_containers_are_copied_and_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Docker(tmp_path)
    monkeypatch.setattr(sources, "docker", docker.command)
    monkeypatch.setattr(sources, "find_cluster", lambda project: docker)
    for broker in (1, 2):
        (tmp_path / f"kafka-{broker}").mkdir()
        shutil.copy(RECORDED / f"broker-{broker}.jsonl", tmp_path / f"kafka-{broker}" / "events.jsonl")
    log = tmp_path / "kafka-1" / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.with_name("events.jsonl.1").write_text("".join(lines[:30]))
    log.write_text("".join(lines[30:60]) + lines[60][:20])
    done = timeline("--compose", "kafka")
    assert done.exit_code == 0, done.output
    assert "cannot reach broker 2, the controller" in done.output
    found = sources.of_compose("kafka")
    first = found.logs[0]
    assert [row["time_ms"] for row in first.read()] == [json.loads(line)["time_ms"] for line in lines[:60]]
    log.write_text("".join(lines[30:62]))
    assert [row["time_ms"] for row in first.read()] == [json.loads(line)["time_ms"] for line in lines[60:62]]
    log.with_name("events.jsonl.1").write_text("".join(lines[30:62]))
    log.write_text(lines[62])
    assert [row["time_ms"] for row in first.read()] == [json.loads(lines[62])["time_ms"]], "after a rotation"
    found.close()
    (tmp_path / "kafka-2" / "events.jsonl").unlink()
    failed = timeline("--compose", "kafka")
    assert failed.exit_code == 1
    assert "the event log of container kafka-2 cannot be read" in failed.output


@pytest.mark.parametrize("options", [[], ["--raw"]])
def test_following_ends_with_ctrl_c(run_directory: Path, options: list[str]) -> None:
    """As a process: what happens is told, Ctrl-C ends it without a complaint."""
    with subprocess.Popen(
        [*COMMAND, "timeline", "--dir", str(run_directory), "--follow", *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        late = threading.Timer(60, process.kill)
        late.start()
        assert process.stdout is not None
        assert process.stdout.readline()
        row = {"time_ms": 1 << 42, "kind": "links_broken", "broker": 1, "others": [2], "links": "from broker:2"}
        with (run_directory / "faults.jsonl").open("a") as log:
            log.write(json.dumps(row) + "\n")
        said = next(line for line in process.stdout if "from broker:2" in line or "cut the links of broker 1" in line)
        assert said
        process.send_signal(signal.SIGINT)
        assert (process.stdout.read(), process.wait()) == ("", 0)
        late.cancel()
