"""What `ottla verify run` refuses before it starts anything, in one line and with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import ottla


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--no-load", "without a COMMAND, only ottla's load runs"),
        ("--id name", "'name' is not key, value, header:NAME or value:FIELD"),
        ("--fault 'drown controller at 3s'", "the actions are kill"),
        ("--fault 'kill controller at 30s' --seconds 20", "--seconds 20 is over before the fault"),
        ("--faults nowhere.yaml", "nowhere.yaml cannot be read"),
        ("--seed 7", "--seed is for --random-faults"),
        ("--random-faults 0", "0 is not in the range"),
        ("--bootstrap-server localhost:1 --random-faults 3", "faults need --fault-command"),
        ("--dir nowhere", "nowhere has no cluster"),
        ("--dir a --compose b", "give one of them"),
        ("--bootstrap-server localhost:1 --override a=b", "--override is for a cluster of its own"),
        ("--bootstrap-server localhost:1 --fault 'kill controller at 3s'", "faults need --fault-command"),
        ("--bootstrap-server ''", "--bootstrap-server: '' is not host:port"),
        ("--bootstrap-server 'x\udcff'", "--bootstrap-server: 'x\\udcff' is not host:port"),
        ("--recipe lost-akc --topic t -- python", "'lost-akc' is no recipe; the recipes are all, leader-moved"),
        ("--recipe all --topic t", "--recipe judges a COMMAND"),
        ("--recipe all -- python", "--recipe needs --topic"),
        ("--recipe all --topic t --seconds 5 -- python", "--recipe has its own faults and times"),
        ("--recipe all --topic t --bootstrap-server localhost:1 -- python", "--recipe needs a cluster whose requests"),
        ("--recipe all --topic t --fault-command harm -- python", "--recipe needs a cluster whose requests"),
        ("--recipe all --topic t --html page.html -- python", "--html is for one run"),
        ("--recipe all --topic t --links nowhere -- python", "no links run in nowhere"),
        ("--recipe all --topic t --markdown nowhere/card.md -- python", "there is no directory nowhere"),
        ("--override unclean", "'unclean' is not KEY=VALUE"),
        ("--topic a:b", "'b' is not a valid integer"),
        ("--allow losses", "'losses' is not one of"),
        ("--json nowhere/verdict.json", "there is no directory nowhere"),
        ("--command-config nowhere.properties", "nowhere.properties: No such file"),
        (
            "--bootstrap-server 127.0.0.1:1 --no-load -- /no/such/program",
            "/no/such/program: there is no such program",
        ),
    ],
)
def test_refusals(options: str, reason: str) -> None:
    done = ottla(f"verify run {options}")
    assert done.exit_code == 2, done.output
    assert reason in done.output
    assert "Traceback" not in done.output


def test_a_bad_property_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=me\nssl.cipher.suites=x\n")
    done = ottla(f"verify run --bootstrap-server localhost:1 --command-config {file}")
    assert done.exit_code == 2
    assert f"{file}: line 2: ssl.cipher.suites: not supported" in done.output
