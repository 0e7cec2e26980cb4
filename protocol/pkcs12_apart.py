"""Reads a store of type PKCS12 in a process of its own, for a server whose loop goes on meanwhile.

The package cryptography computes the keys of a store for 70 to 200 ms and keeps the interpreter locked, so a thread would hold the loop.

    stdin: two lines of base64, the password and the store  ->  stdout: JSON, [key, certificates, others] or the reason why not
"""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path

from protocol.tls import Identity, TlsError, read_pkcs12

TIMEOUT_S = 30.0
ROOT = Path(__file__).resolve().parents[1]


def read_pkcs12_apart(data: bytes, password: str) -> tuple[Identity | None, list[str]]:
    """As `read_pkcs12`; call it in a thread. Raises TlsError, and OSError if there is no process for it."""
    given = b"\n".join((b64encode(password.encode("utf-8", "surrogatepass")), b64encode(data)))
    command = [sys.executable, "-m", "protocol.pkcs12_apart"]
    try:
        done = subprocess.run(command, input=given, capture_output=True, cwd=ROOT, timeout=TIMEOUT_S, check=False)
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise TlsError(f"it takes longer than {TIMEOUT_S:g} s to read it") from None
    except ValueError:
        raise TlsError("it could not be read: the process for that has failed") from None
    if isinstance(answer, str):
        raise TlsError(answer)
    key, certificates, others = answer
    return (Identity(key, certificates) if key else None), others


def main() -> None:
    """Answers on standard output."""
    password, _, data = sys.stdin.buffer.read().partition(b"\n")
    try:
        identity, others = read_pkcs12(b64decode(data), b64decode(password).decode("utf-8", "surrogatepass"))
    except TlsError as problem:
        answer: object = str(problem)
    else:
        answer = ("", "", others) if identity is None else (*identity, others)
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
