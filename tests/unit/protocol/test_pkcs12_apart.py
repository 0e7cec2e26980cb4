"""A store of type PKCS12 that another process reads: the same keys, and the same reasons why not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from protocol import pkcs12_apart
from protocol.pkcs12_apart import read_pkcs12_apart
from protocol.tls import TlsError, read_pkcs12
from tests.support.certificates import Certificates

PASSWORD = "opens-the-störe"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("has_key", [True, False])
def test_the_other_process_reads_the_same(made: Certificates, has_key: bool) -> None:
    store = made.pkcs12("broker", PASSWORD) if has_key else made.trusted_pkcs12(PASSWORD)
    data = store.read_bytes()
    identity, others = read_pkcs12_apart(data, PASSWORD)
    assert (identity, others) == read_pkcs12(data, PASSWORD)
    assert (identity is not None, bool(others)) == (has_key, not has_key)


@pytest.mark.parametrize(
    ("password", "is_whole", "reason"),
    [
        ("WRONG-ONE", True, "the password of the store is wrong"),
        ("", True, "the password of the store is wrong"),
        (PASSWORD, False, "it is no store of type PKCS12"),
    ],
)
def test_the_reasons_are_the_same(made: Certificates, password: str, is_whole: bool, reason: str) -> None:
    data = made.pkcs12("broker", PASSWORD).read_bytes()
    with pytest.raises(TlsError, match=reason):
        read_pkcs12_apart(data if is_whole else data[:100], password)


def test_a_process_that_fails_or_hangs_is_a_reason(made: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    data = made.pkcs12("broker", PASSWORD).read_bytes()
    real = subprocess.run

    def instead(program: str) -> None:
        monkeypatch.setattr(
            subprocess, "run", lambda command, **options: real([sys.executable, "-c", program], **options)
        )

    instead("raise SystemExit(1)")
    with pytest.raises(TlsError, match="the process for that has failed"):
        read_pkcs12_apart(data, PASSWORD)
    monkeypatch.setattr(pkcs12_apart, "TIMEOUT_S", 0.2)
    instead("import sys; sys.stdin.read(); sys.stdout.close(); __import__('time').sleep(60)")
    with pytest.raises(TlsError, match=r"it takes longer than 0\.2 s to read it"):
        read_pkcs12_apart(data, PASSWORD)


def test_nothing_secret_is_among_the_arguments(made: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    real = subprocess.run

    def noted(command: list[str], **options: object) -> object:
        commands.append(command)
        return real(command, **options)  # type: ignore[call-overload]

    data = made.pkcs12("broker", PASSWORD).read_bytes()
    monkeypatch.setattr(subprocess, "run", noted)
    read_pkcs12_apart(data, PASSWORD)
    assert commands == [[sys.executable, "-m", "protocol.pkcs12_apart"]]
    assert Path(pkcs12_apart.ROOT, "protocol", "pkcs12_apart.py").is_file()
