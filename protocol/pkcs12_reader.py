"""Opens a store of type PKCS12: the program of a process of its own, and how to start it.

The key of a store may take any number of iterations. The package cryptography computes it while it holds Python's lock, so no thread of the
broker could run meanwhile. What is read and written goes through pipes; nothing comes to a disk or into a list of processes.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any, NamedTuple

OPENING_S_MAX = 60.0
"""Above 10 million iterations."""


class BadStore(ValueError):
    """The text says why, without anything secret."""


class Opened(NamedTuple):
    """PEM texts. `certificate`: that of the key, or the one that is marked as such."""

    key: str | None
    certificate: str | None
    others: list[str]

    def __repr__(self) -> str:
        return "Opened(...)"


def open_store(data: bytes, password: str) -> Opened:
    """Opens the store in another process. Raises BadStore, and OSError if there can be no process."""
    asked = json.dumps({"data": base64.b64encode(data).decode(), "password": password})
    # -P: the modules beside this file must not hide those of Python.
    command = [sys.executable, "-P", __file__]
    try:
        done = subprocess.run(command, input=asked.encode(), capture_output=True, timeout=OPENING_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise BadStore(f"opening it takes more than {OPENING_S_MAX:g} s; make it with fewer iterations") from None
    if done.returncode:
        raise BadStore(f"the process that opens it ended with {done.returncode}")
    answer = json.loads(done.stdout)
    if "problem" in answer:
        raise BadStore(answer["problem"])
    return Opened(**answer)


def _answer(data: bytes, password: str) -> dict[str, Any]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    pem = serialization.Encoding.PEM
    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError as problem:
        if "password" in str(problem).lower():
            return {"problem": "the password of the store is wrong"}
        return {"problem": "it is no store of type PKCS12"}
    except UnsupportedAlgorithm:
        return {"problem": "it uses an encryption that is not supported"}
    key = None
    if store.key is not None:
        key = store.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
    return {
        "key": key,
        "certificate": None if store.cert is None else store.cert.certificate.public_bytes(pem).decode(),
        "others": [found.certificate.public_bytes(pem).decode() for found in store.additional_certs],
    }


if __name__ == "__main__":
    given = json.load(sys.stdin)
    json.dump(_answer(base64.b64decode(given["data"]), given["password"]), sys.stdout)
