"""The name of a client by its certificate, as Kafka has it: the subject in RFC 2253, then `ssl.principal.mapping.rules` (KIP-371). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

SPLIT = re.compile(r"\s*((DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?))\s*(?:,\s*|$)")
REFERENCE = re.compile(r"\$(\d+)|\\(.)", re.DOTALL)
ESCAPED = re.compile(r'([,+"\\<>;])')
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


class BadRules(ValueError):
    """The text says which rule is wrong."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern` None: DEFAULT. `case`: `L`, `U` or nothing."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        found = self.pattern.fullmatch(subject)
        if found is None:
            return None
        name = REFERENCE.sub(lambda part: _referred(part, found), self.replacement)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


def _referred(part: re.Match[str], found: re.Match[str]) -> str:
    """What `$12` stands for: group 12, or group 1 and a `2` if there are fewer; itself if there is no such group."""
    digits, literal = part.groups()
    if literal is not None:
        return str(literal)
    for length in range(len(digits), 0, -1):
        if int(digits[:length]) <= found.re.groups:
            return (found[int(digits[:length])] or "") + digits[length:]
    return part[0]


def read_rules(text: str) -> list[Rule]:
    """Raises BadRules."""
    rules = []
    for found in SPLIT.finditer(text.strip()):
        whole, default, pattern, replacement, case, other = found.groups()
        if other:
            raise BadRules(f"{other[:100]!r}: expected DEFAULT or RULE:pattern/replacement/[LU]")
        if default:
            rules.append(Rule())
        elif pattern is not None:
            try:
                rules.append(Rule(re.compile(re.sub(r"\\/", "/", pattern)), replacement, case))
            except re.error as problem:
                raise BadRules(f"{whole[:100]!r}: {problem}") from None
    return rules


def namer(rules: list[Rule]) -> Callable[[bytes], str | None]:
    """A function from a certificate in DER to the client's name; None if no rule is for its subject."""

    def name_of(certificate: bytes) -> str | None:
        subject = subject_of(certificate)
        return next((name for rule in rules if (name := rule.apply(subject)) is not None), None)

    return name_of


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER, as Java's X500Principal.getName() writes it: the last part first."""
    # Imported late: few listeners ask for certificates.
    from cryptography import x509

    subject = x509.load_der_x509_certificate(certificate).subject
    parts = []
    for attributes in reversed(list(subject.rdns)):
        words = []
        for attribute in attributes:
            identifier = attribute.oid.dotted_string
            if identifier in NAMES and isinstance(attribute.value, str):
                words.append(f"{NAMES[identifier]}={_escaped(attribute.value)}")
            else:
                alone = x509.Name([x509.RelativeDistinguishedName([attribute])]).public_bytes()
                words.append(f"{identifier}=#{_value_of(alone).hex()}")
        parts.append("+".join(words))
    return ",".join(parts)


def _value_of(name: bytes) -> bytes:
    """The DER of the value in a name of one attribute: SEQUENCE, SET, SEQUENCE, the identifier, the value."""
    at = 0
    for _ in range(3):
        at = _content(name, at)
    at = _content(name, at) + name[at + 1]  # an identifier has fewer than 128 bytes
    return name[at:]


def _content(data: bytes, at: int) -> int:
    """Where the content of the element at `at` begins."""
    length = data[at + 1]
    return at + 2 + (length & 0x7F if length >= 0x80 else 0)


def _escaped(value: str) -> str:
    text = ESCAPED.sub(r"\\\1", value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if text.endswith(" ") and len(text) > 1:
        text = text[:-1] + "\\ "
    return text
