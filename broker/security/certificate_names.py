"""The name of a client by its certificate, as Kafka has it: its subject, and then `ssl.principal.mapping.rules` (KIP-371). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from broker.security.certificate_subject import BadSubject, subject_of

SPLIT = re.compile(r"\s*((DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?))\s*(?:,\s*|$)")
REFERENCE = re.compile(r"\$(\d+)|\\(.)", re.DOTALL)


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


def namer(rules: list[Rule]) -> Callable[[bytes], str]:
    """A function from a certificate in DER to the client's name. It raises BadSubject, also if no rule is for the subject."""

    def name_of(certificate: bytes) -> str:
        subject = subject_of(certificate)
        for rule in rules:
            if (name := rule.apply(subject)) is not None:
                return name
        raise BadSubject("no rule of ssl.principal.mapping.rules is for the subject of its certificate")

    return name_of
