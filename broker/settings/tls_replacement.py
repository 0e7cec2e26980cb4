"""What may take the place of a listener's certificates while it serves, as Kafka has it (`SslFactory.createNewSslEngineFactory`).

Clients and brokers that trust the listener as it is must go on to trust it. Whoever changes settings can say that they need not:
`ssl.allow.dn.changes`, `ssl.allow.san.changes`.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from protocol.tls import client_reason

if TYPE_CHECKING:
    from cryptography import x509

STEPS_MAX = 20
"""A handshake has three or four."""


class Unfit(ValueError):
    """The text says why the new certificates cannot take the place of the present ones."""


def check_names(present: bytes, new: bytes, *, may_change_subject: bool, may_lose_names: bool) -> None:
    """Whether the new certificate (DER) has the subject of the present one and all of its alternative names. Raises Unfit."""
    from cryptography import x509

    try:
        before, after = x509.load_der_x509_certificate(present), x509.load_der_x509_certificate(new)
        subjects = before.subject, after.subject
        names = _names(before), _names(after)
    except ValueError as problem:
        raise Unfit(f"the certificate cannot be compared with the present one: {problem}") from None
    if not may_change_subject and _comparable(subjects[0]) != _comparable(subjects[1]):
        raise Unfit(
            f"the subject of the certificate is {_shown(subjects[1])}, and that of the present one {_shown(subjects[0])}; "
            "ssl.allow.dn.changes=true allows another one"
        )
    missing = names[0] - names[1]
    if not may_lose_names and missing:
        raise Unfit(
            f"the certificate lacks names of the present one: {', '.join(sorted(missing))}; ssl.allow.san.changes=true allows it"
        )


def check_handshakes(
    present: tuple[ssl.SSLContext, ssl.SSLContext], new: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """Whether brokers with the present and with the new settings can connect to each other. Raises Unfit.

    Each is (server, client); the client does not compare the host's name.
    """
    for (server, _), (_, client), what in (
        (new, present, "a broker with the present settings does not connect to one with these"),
        (present, new, "a broker with these settings does not connect to one with the present ones"),
    ):
        if reason := _why_not(server, client):
            raise Unfit(f"{what}: {reason}")


def _why_not(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Why they do not shake hands; "" if they do."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    connecting = client.wrap_bio(to_client, to_server)
    accepting = server.wrap_bio(to_server, to_client, server_side=True)
    is_done = [False, False]
    for _ in range(STEPS_MAX):
        for at, side in enumerate((connecting, accepting)):
            if is_done[at]:
                continue
            try:
                side.do_handshake()
                is_done[at] = True
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as problem:
                return client_reason(problem)
        if all(is_done):
            return ""
    return "the handshake does not end"


def _names(certificate: x509.Certificate) -> frozenset[str]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(f"{type(name).__name__} {name.value}" for name in found)


def _comparable(name: x509.Name) -> list[frozenset[tuple[str, str]]]:
    """As `X500Principal.equals`: without regard to case and to blanks."""
    return [
        frozenset((one.oid.dotted_string, " ".join(str(one.value).casefold().split())) for one in part)
        for part in name.rdns
    ]


def _shown(name: x509.Name) -> str:
    return name.rfc4514_string() or "empty"
