"""Who may use the console. Pure.

- A browser sends the name by which it knows the console (`Host`). A name that is not the console's own is refused, so that a page of a
  stranger cannot reach it under the stranger's name (DNS rebinding).
- A request that changes something needs the `Origin` of the console's own page, or the token in a header.
- On an address that others reach, every request needs the token.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

TOKEN_LENGTH_MIN = 16
COOKIE = "ottla-console"
BEARER = "Bearer "


class Refused(Exception):
    """The request is not answered. `status`: HTTP's number."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says of itself. `cookie`, `bearer`, `origin`: None if it does not have one."""

    host: str
    changes: bool = False
    origin: str | None = None
    cookie: str | None = None
    bearer: str | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """`token`: None if none is needed. `names`: the names of the console, beside addresses; on loopback, only loopback addresses."""

    token: str | None
    is_loopback: bool
    names: Collection[str] = ()

    def check(self, asked: Asked) -> None:
        """Raises Refused."""
        if not self.knows(asked.host):
            raise Refused(
                421, f"the console is not known as {asked.host[:100]!r}: use its address, or start it with --name"
            )
        if self.token is not None and not self._has_token(asked):
            raise Refused(401, "the token is missing or wrong: open the address that `ottla console` printed")
        if asked.changes and not self._is_own(asked):
            raise Refused(403, "this request does not come from the console's own page")

    def knows(self, host: str) -> bool:
        """Whether the value of a `Host` header is a name of the console. The port is not compared: it may be forwarded."""
        name = host_of(host)
        if name is None:
            return False
        if name == "localhost" or name in {each.lower() for each in self.names}:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self.is_loopback

    def is_token(self, given: str) -> bool:
        """Compares in constant time."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def _has_token(self, asked: Asked) -> bool:
        return any(self.is_token(given) for given in (asked.bearer, asked.cookie) if given is not None)

    def _is_own(self, asked: Asked) -> bool:
        """A page of another origin cannot set the header `Authorization`, and cannot choose its `Origin`."""
        if asked.origin is None:
            return asked.bearer is not None and self.is_token(asked.bearer)
        return asked.origin in (f"http://{asked.host}", f"https://{asked.host}")


def host_of(host: str) -> str | None:
    """The name or address in `name`, `name:port`, `[::1]:port`; None if it is nothing like that."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not _is_port(port)):
            return None
        return name.lower()
    name, colon, port = host.partition(":")
    if not name or (colon and not _is_port(f":{port}")):
        return None
    return name.lower().rstrip(".")


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdecimal()
