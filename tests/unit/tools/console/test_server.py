"""Who may ask the console for what, over HTTP: names, tokens, origins, and the faults that are not allowed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from tools.cli import main
from tools.console.access import Access, Asked, Refused, host_of
from tools.console.feed import Feed
from tools.console.harm import Harm
from tools.console.server import Console, serve
from tools.faults.commanded import CommandedCluster

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"), ("LocalHost:8080", "localhost"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("a.example.:1", "a.example"),
        ("", None), (":80", None), ("[::1", None), ("h:80x", None), ("h:", None), ("::1", None),
    ],
)  # fmt: skip
def test_the_name_in_a_host_header(host: str, name: str | None) -> None:
    assert host_of(host) == name


HERE, THERE = Access(None, is_loopback=True, names=["127.0.0.1"]), Access(TOKEN, is_loopback=False, names=["kafka.lan"])
OWN = {"changes": True, "origin": "http://localhost:1"}


@pytest.mark.parametrize(
    ("access", "asked", "status"),
    [
        (HERE, Asked("localhost:1"), None),
        (HERE, Asked("127.0.0.1:1"), None),
        (HERE, Asked("[::1]:1"), None),
        (HERE, Asked("evil.example:1"), 421),
        (HERE, Asked("192.168.1.5:1"), 421),
        (HERE, Asked(""), 421),
        (HERE, Asked("localhost:1", changes=True), 403),
        (HERE, Asked("localhost:1", changes=True, origin="null"), 403),
        (HERE, Asked("localhost:1", changes=True, origin="http://localhost:2"), 403),
        (HERE, Asked("localhost:1", changes=True, origin="http://evil.example"), 403),
        (HERE, Asked("localhost:1", changes=True, bearer="anything"), 403),
        (HERE, Asked("localhost:1", **OWN), None),
        (THERE, Asked("192.168.1.5:1"), 401),
        (THERE, Asked("192.168.1.5:1", cookie=TOKEN[:-1]), 401),
        (THERE, Asked("192.168.1.5:1", cookie="tökén"), 401),
        (THERE, Asked("192.168.1.5:1", cookie=TOKEN), None),
        (THERE, Asked("kafka.lan", bearer=TOKEN), None),
        (THERE, Asked("evil.example", bearer=TOKEN), 421),
        (THERE, Asked("kafka.lan", changes=True, cookie=TOKEN), 403),
        (THERE, Asked("kafka.lan", changes=True, cookie=TOKEN, origin="http://evil.example"), 403),
        (THERE, Asked("kafka.lan", changes=True, cookie=TOKEN, origin="https://kafka.lan"), None),
        (THERE, Asked("kafka.lan", changes=True, bearer=TOKEN), None),
    ],
)
def test_who_may_ask(access: Access, asked: Asked, status: int | None) -> None:
    if status is None:
        access.check(asked)
        return
    with pytest.raises(Refused) as refused:
        access.check(asked)
    assert refused.value.status == status


def answers(console: Console, *asked: tuple[str, str, dict[str, Any]]) -> list[tuple[int, str]]:
    """The status and the text of each answer of a real server. `asked`: method, path, aiohttp's options."""

    async def scene() -> list[tuple[int, str]]:
        runner, port = await serve(console, "127.0.0.1", 0)
        try:
            async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
                found = []
                for method, path, options in asked:
                    if options.get("headers", {}).get("Origin") == "own":
                        options["headers"]["Origin"] = f"http://127.0.0.1:{port}"
                    async with session.request(method, f"http://127.0.0.1:{port}{path}", **options) as answer:
                        assert answer.headers["X-Frame-Options"] == "DENY"
                        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                        found.append((answer.status, await answer.text()))
                return found
        finally:
            await runner.cleanup()

    return asyncio.run(scene())


def fault(body: Any, **headers: str) -> tuple[str, str, dict[str, Any]]:
    data = body if isinstance(body, str) else json.dumps(body)
    return (
        "POST",
        "/faults",
        {"data": data, "headers": {"Content-Type": "application/json", "Origin": "own", **headers}},
    )


ABOUT = {"cluster": "</script><b>", "timeline": True}


def test_without_faults() -> None:
    console = Console(Feed(), HERE, ABOUT)
    page, script, unknown, refused, foreign, stranger = answers(
        console,
        ("GET", "/", {}),
        ("GET", "/console.js", {}),
        ("GET", "/../pyproject.toml", {}),
        fault({"fault": "kill broker 1"}),
        fault({"fault": "kill broker 1"}, Origin="http://evil.example"),
        ("GET", "/", {"headers": {"Host": "evil.example"}}),
    )
    assert page[0] == script[0] == 200
    assert '"faults":null' in page[1]
    assert "</script><b>" not in page[1]
    assert unknown[0] == 404
    assert refused == (403, '{"error": "faults are not allowed: start `ottla console --allow-faults`"}')
    assert foreign[0] == 403
    assert stranger[0] == 421


def test_faults(tmp_path: Path) -> None:
    """By a program that writes down what it was called with."""
    log, program = tmp_path / "log", tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\ntest "$2" != 2\n')
    program.chmod(0o755)
    cluster = CommandedCluster(str(program), {1: ("h", 1), 2: ("h", 2)})
    cluster.record_file = tmp_path / "unhealed.json"
    said: list[str] = []

    async def made() -> Harm:
        return Harm(cluster, lambda text, _: said.append(text))

    console = Console(Feed(), HERE, ABOUT, asyncio.run(made()))
    done, failed, *bad = answers(
        console,
        fault({"fault": "kill broker 1"}),
        fault({"fault": "kill broker 2"}),
        fault({"fault": "kill broker 9"}),
        fault({"fault": "explode broker 1"}),
        fault({"fault": "kill it"}),
        fault({"fault": "kill broker 1 at 5s"}),
        fault({"fault": "x" * 600}),
        fault({"fault": ["kill"]}),
        fault("[" * 2000),
        fault({"fault": "kill broker 1", "more": "x" * 5000}),
        fault({"fault": "kill broker 1"}, **{"Content-Type": "text/plain"}),
    )
    assert done == (200, '{"done": ["kill broker 1: broker 1"]}')
    assert failed[0] == 422
    assert [status for status, _ in bad] == [422, 422, 422, 422, 422, 400, 400, 413, 415]
    assert "the cluster has no broker 9" in bad[0][1]
    assert log.read_text().splitlines() == ["kill 1 h 1", "kill 2 h 2"]
    assert said[0] == "kill broker 1: broker 1"


def test_a_token_is_put_into_a_cookie_once() -> None:
    console = Console(Feed(), Access(TOKEN, is_loopback=True), ABOUT)
    statuses = [
        status
        for status, _ in answers(
            console,
            ("GET", "/", {}),
            ("GET", "/?token=wrong", {}),
            ("GET", "/changes?token=" + TOKEN, {}),
            ("GET", "/?token=" + TOKEN, {"headers": {"Host": "evil.example"}}),
            ("GET", "/?token=" + TOKEN, {"allow_redirects": False}),
            ("GET", "/", {}),
        )
    ]
    assert statuses == [401, 401, 401, 421, 303, 200]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "8080"], "'8080' is not HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "is not HOST:PORT"),
        (["--listen", "a:1,b:2"], "is not HOST:PORT"),
        (["--dir", "x", "--compose", "y"], "name a cluster each"),
        (["--bootstrap-server", "127.0.0.1:1", "--allow-faults"], "--allow-faults needs to know the processes"),
        (["--fault-command", "x"], "--fault-command is for --allow-faults"),
        (["--dir", "nowhere"], "nowhere has no cluster"),
        (["--bootstrap-server", "nothing:"], "--bootstrap-server: 'nothing:' is not host:port"),
        (["--bootstrap-server", "nothing.invalid:1"], "answers (nothing.invalid:1: the host name does not resolve)"),
        (["--bootstrap-server", "127.0.0.1:1"], "no broker of 127.0.0.1:1 answers"),
        (["--bootstrap-server", "127.0.0.1:1", "--command-config", "no.file"], "no.file: No such file"),
    ],
)
def test_bad_options(options: list[str], words: str) -> None:
    done = CliRunner().invoke(main, ["console", *options])
    assert done.exit_code in (1, 2)
    assert words in done.output
    assert "Traceback" not in done.output
    assert not isinstance(done.exception, ValueError | OSError)


@pytest.mark.parametrize(
    ("text", "words"),
    [("short", "16 to 1000"), ("a token with some spaces", "without spaces"), ("ä" * 20, "ASCII"), (None, "No such")],
)
def test_bad_tokens(text: str | None, words: str, tmp_path: Path) -> None:
    from tools.cluster.processes import ClusterError
    from tools.console.console_command import read_token

    if text is not None:
        (tmp_path / "token").write_text(text)
    with pytest.raises(ClusterError, match=words):
        read_token(tmp_path / "token")
