"""`ottla user`: what it asks for, what it refuses, and where the password comes from (CLI-5)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import ottla
from tools.admin import kafka_admin

SECRET = "a-secret"


class FakeUsers:
    """The users of a cluster, behind the admin client's methods."""

    def __init__(self) -> None:
        self.users: dict[str, dict[str, int]] = {"alice": {"SCRAM-SHA-512": 4096}}
        self.passwords: list[str] = []

    def scram_users(self) -> dict[str, dict[str, int]]:
        return self.users

    def set_password(self, user: str, mechanism: str, iterations: int, password: str) -> None:
        self.users.setdefault(user, {})[mechanism] = iterations
        self.passwords.append(password)

    def delete_passwords(self, user: str, mechanisms: Sequence[str]) -> None:
        for mechanism in mechanisms:
            del self.users[user][mechanism]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeUsers:
    users = FakeUsers()
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "fake:1")
    monkeypatch.setattr(kafka_admin, "KafkaAdmin", lambda *_arguments, **_options: users)
    return users


def run(*arguments: str) -> Any:
    return ottla(shlex.join(arguments))


@pytest.fixture
def password(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\nnot this line\n")
    return str(file)


def test_a_user_is_created_altered_and_deleted(fake: FakeUsers, password: str) -> None:
    for action, options in (("create", ()), ("alter", ("--iterations", "8192"))):
        done = run("user", action, "bob", "--mechanism", "SCRAM-SHA-256", "--password-file", password, *options)
        assert (done.exit_code, SECRET in done.output) == (0, False), done.output
    assert fake.passwords == [SECRET, SECRET]
    assert json.loads(run("user", "list", "--format", "json").output)["bob"] == {"SCRAM-SHA-256": 8192}
    assert "bob: SCRAM-SHA-256 (8192 iterations)" in run("user", "list").output
    assert run("user", "delete", "bob").exit_code == 0
    assert fake.users["bob"] == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "alice"), "`ottla user alter` changes it"),
        (("alter", "bob"), "`ottla user create` sets one"),
        (("alter", "alice", "--mechanism", "SCRAM-SHA-256"), "`ottla user create` sets one"),
        (("create", "bob", "--iterations", "100"), "4096"),
    ],
)
def test_what_is_refused(fake: FakeUsers, password: str, arguments: tuple[str, ...], said: str) -> None:
    done = run("user", *arguments, "--password-file", password)
    assert done.exit_code != 0
    assert said in done.output
    assert not fake.passwords


def test_an_empty_password_and_a_user_without_one_are_refused(fake: FakeUsers, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    assert "the password is empty" in run("user", "create", "bob", "--password-file", str(empty)).output
    assert "user 'bob' has no password" in run("user", "delete", "bob").output
    assert not fake.passwords
