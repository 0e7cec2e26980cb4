"""What the Python programs share: verb and JSON from the command line, lines of JSON, the end of stdin."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

UNSUPPORTED = 3
HUNG_S = 15.0
"""A call of a library that takes longer never returns."""

ONLY_LOGGED = "so with a topic hidden from a reader"
"""A note to `say_refused`, after that of `say_login_by`."""

Request = dict[str, Any]
VERBS = frozenset(("produce", "write", "consume", "group", "transact", "pipeline", "admin", "login", "denied"))


class Unsupported(Exception):
    """The client does not have what is asked for. The text is the reason."""


_saying = threading.Lock()


def say(**line: Any) -> None:
    """From any thread: `print` writes the end of a line on its own."""
    with _saying:
        print(json.dumps(line), flush=True)


def say_refused(error: str, *, to: str, topic: str, saw: object, **note: str) -> None:
    """`error`: Kafka's name of the error that the library has raised; `to`: "write" or "read"; `note`: what is odd about it."""
    say(refused=error, to=to, topic=topic, saw=str(saw), **note)


def say_login(error: str | None, saw: object = None) -> None:
    """`error`: as in `say_refused`; None if the login counts."""
    say(**({"logged_in": True} if error is None else {"refused": error, "saw": str(saw)}))


class Logged(logging.Handler):
    """Parts of one type in the lines of a library's log, from now on: errors that it does not raise."""

    def __init__(self, library: str, kind: type[Any]) -> None:
        super().__init__()
        self.found: list[Any] = []
        self._kind = kind
        logging.getLogger(library).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.found += [part for part in record.args or () if isinstance(part, self._kind)]


def say_login_by(call: Callable[[], Any], logged: Logged, raised: type[Exception]) -> None:
    """What came of a login by a library that at most logs why it failed, and raises `raised`."""
    try:
        call()
    except raised as problem:
        if not logged.found:
            say(refused=type(problem).__name__, saw=str(problem))
            return
        note = f"a failed login raises {type(problem).__name__}, and only its log names it"
        say(refused="SASL_AUTHENTICATION_FAILED", saw=str(logged.found[0]), note=note)
    else:
        say_login(None)


def only_classic_groups(request: Request, library: str) -> None:
    """Raises Unsupported if a group of the new kind (KIP-848) is asked for."""
    if request.get("protocol", "classic") != "classic":
        raise Unsupported(f"{library} has no groups of the new kind")


def librdkafka_connection(request: Request) -> dict[str, str]:
    """Its settings for a cluster, and for the login there, but without a token."""
    settings = {"bootstrap.servers": request["bootstrap"]}
    if "security" not in request:
        return settings
    security = request["security"]
    settings["ssl.ca.location"] = security["authority"]
    if "certificate" in security:
        own = security["certificate"]
        return {**settings, "security.protocol": "ssl", "ssl.certificate.location": own, "ssl.key.location": own}
    settings |= {"security.protocol": "sasl_ssl", "sasl.mechanism": security["mechanism"]}
    if "password" in security:
        settings |= {"sasl.username": security["user"], "sasl.password": security["password"]}
    return settings


def say_failed(value: str, error: object) -> None:
    say(failed=value, error=str(error))


def did(action: str, saw: Any) -> None:
    say(did=action, saw=saw)


def stdin_lines() -> Iterator[str]:
    """Each line when it comes, without its end."""
    while line := sys.stdin.readline():
        yield line.rstrip("\n")


def stdin_closed() -> threading.Event:
    """Is set when stdin is closed."""
    closed = threading.Event()

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):  # no buffer, whose lock would be held when the program ends
            pass
        closed.set()

    threading.Thread(target=wait, daemon=True).start()
    return closed


@contextlib.contextmanager
def starting_again_if_hung(module: str) -> Iterator[None]:
    """If the block takes HUNG_S, starts the program `module` again in this process, as a supervisor would.

    The new program has the same transactional id, so it fences what the old one left open.
    """

    def start_again() -> None:
        print(f"a call did not return in {HUNG_S:g} s: the program starts again", file=sys.stderr, flush=True)
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])

    watch = threading.Timer(HUNG_S, start_again)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def run(program: Mapping[str, Any]) -> int:
    """Carries out the command line; `program` has a function for each verb. -> the exit code"""
    _, verb, text = sys.argv
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        if verb not in VERBS or verb not in program:
            raise Unsupported(f"it has no {verb}")
        program[verb](json.loads(text))
    except Unsupported as reason:
        say(unsupported=str(reason))
        return UNSUPPORTED
    return 0


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def decoded(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def say_record(partition: int, offset: int, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
    say(value=decoded(value), key=decoded(key), partition=partition, offset=offset, timestamp_ms=timestamp_ms)
