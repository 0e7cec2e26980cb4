"""The subject of a certificate as Java's X500Principal.getName() writes it (RFC 2253), which is what rules and ACLs are written for. Pure.

The certificate has passed OpenSSL's checks. Its subject is still whatever its authority has signed: values of any length, with any
characters, parts of several attributes in any order. Java takes the bytes of each text for UTF-8, whatever kind of text they claim to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

SUBJECT_BYTES_MAX = 2048
"""Of a subject as the certificate has it. Rules take longer for a longer one, and the name is kept where quotas and metrics are."""
NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""Object identifier -> the word that RFC 2253 has for it. Java writes all others as numbers, with the value in hex."""
ESCAPED = re.compile(r'([,=+<>#;"\\])')
MARGIN = " \r"
"""Java escapes each of them at the beginning and at the end of a value."""

SEQUENCE, SET, IDENTIFIER, VERSION = 0x30, 0x31, 0x06, 0xA0
TEXTS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""Tags of the texts that Java shows as such: UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString."""
BEFORE_THE_SUBJECT = 4
"""In a certificate, behind its version: number, algorithm, issuer, validity."""
LENGTH_BYTES_MAX = 4


class BadSubject(ValueError):
    """The subject cannot be used. The text says why."""


class _Element(NamedTuple):
    """One element of DER: its tag, its content, and all of its bytes."""

    tag: int
    content: bytes
    whole: bytes


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER, the last part first. Raises BadSubject."""
    (signed, *_) = _elements(_only(certificate, SEQUENCE))
    fields = [field for field in _elements(signed.content) if field.tag != VERSION]
    if len(fields) <= BEFORE_THE_SUBJECT:
        raise BadSubject("its certificate has no subject")
    return shown(fields[BEFORE_THE_SUBJECT].whole)


def shown(name: bytes) -> str:
    """A name in DER, as text. Raises BadSubject."""
    if len(name) > SUBJECT_BYTES_MAX:
        raise BadSubject(f"the subject of its certificate has {len(name)} bytes, and may have {SUBJECT_BYTES_MAX}")
    parts = []
    for part in _elements(_only(name, SEQUENCE)):
        attributes = [_attribute(one) for one in _elements(_content(part, SET))]
        parts.append("+".join(attributes))
    return ",".join(reversed(parts))


def _attribute(element: _Element) -> str:
    try:
        identifier, value = _elements(_content(element, SEQUENCE))
    except ValueError:
        raise BadSubject("the subject of its certificate has an attribute that is not one value") from None
    number = _number(_content(identifier, IDENTIFIER))
    word = NAMES.get(number)
    if word is None or value.tag not in TEXTS:
        return f"{word or number}=#{value.whole.hex()}"
    return f"{word}={_escaped(value.content.decode('utf-8', 'replace'))}"


def _escaped(value: str) -> str:
    text = ESCAPED.sub(r"\\\1", value).replace("\0", "\\00")
    inside = text.strip(MARGIN)
    if not inside:
        return "".join(f"\\{one}" for one in text)
    before, _, after = text.partition(inside)
    return "".join(f"\\{one}" for one in before) + inside + "".join(f"\\{one}" for one in after)


def _number(content: bytes) -> str:
    """An object identifier with dots."""
    arcs, arc = [], 0
    for byte in content:
        arc = arc << 7 | byte & 0x7F
        if byte < 0x80:
            arcs.append(arc)
            arc = 0
    if not arcs or content[-1] >= 0x80:
        raise BadSubject("the subject of its certificate has an attribute without a kind")
    first = min(arcs[0] // 40, 2)
    return ".".join(map(str, (first, arcs[0] - 40 * first, *arcs[1:])))


def _only(data: bytes, tag: int) -> bytes:
    """The content of the element that is all of the data."""
    found = list(_elements(data))
    if len(found) != 1:
        raise BadSubject("its certificate is not in DER")
    return _content(found[0], tag)


def _content(element: _Element, tag: int) -> bytes:
    if element.tag != tag:
        raise BadSubject(f"its certificate is not in DER: an element {element.tag:#x} in place of {tag:#x}")
    return element.content


def _elements(data: bytes) -> Iterator[_Element]:
    at = 0
    while at < len(data):
        begin, size = at + 2, data[at + 1] if at + 1 < len(data) else len(data)
        if size >= 0x80 and at + 1 < len(data):
            count = size & 0x7F
            if not 1 <= count <= LENGTH_BYTES_MAX:
                raise BadSubject("its certificate is not in DER: a length is not definite, or too large")
            begin, size = begin + count, int.from_bytes(data[begin : begin + count], "big")
        if begin + size > len(data):
            raise BadSubject("its certificate is not in DER: it is cut off")
        yield _Element(data[at], data[begin : begin + size], data[at : begin + size])
        at = begin + size
