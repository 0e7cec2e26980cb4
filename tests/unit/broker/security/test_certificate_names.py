"""A client's name by its certificate: the subject as Java writes it, and the rules of KIP-371 (CLI-5)."""

from __future__ import annotations

import datetime

import pytest

from broker.security.certificate_names import BadRules, namer, read_rules
from broker.security.certificate_subject import BadSubject

x509 = pytest.importorskip("cryptography.x509")


def certificate(*parts: tuple[str, str]) -> bytes:
    """In DER; parts in the order of the certificate."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.ObjectIdentifier(number), value) for number, value in parts])
    day = datetime.datetime(2020, 1, 1)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(day).not_valid_after(day)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


COUNTRY, ORGANIZATION, UNIT, NAME, EMAIL = "2.5.4.6", "2.5.4.10", "2.5.4.11", "2.5.4.3", "1.2.840.113549.1.9.1"
"""What openssl calls C, O, OU, CN and emailAddress."""


@pytest.mark.parametrize(
    ("parts", "subject"),
    [
        (((COUNTRY, "DE"), (ORGANIZATION, "us"), (NAME, "client")), "CN=client,O=us,C=DE"),
        (((NAME, 'a,b+"c"\\<d>;'),), 'CN=a\\,b\\+\\"c\\"\\\\\\<d\\>\\;'),
        (((NAME, " x "),), "CN=\\ x\\ "),
        (((NAME, "#x=y"),), "CN=\\#x\\=y"),
        (((NAME, "ünï"),), "CN=ünï"),
        (((NAME, "c"), (EMAIL, "a@b")), "1.2.840.113549.1.9.1=#1603614062,CN=c"),
    ],
)
def test_a_subject_is_written_as_java_does(parts: tuple[tuple[str, str], ...], subject: str) -> None:
    """X500Principal.getName(), in RFC 2253."""
    assert namer(read_rules("DEFAULT"))(certificate(*parts)) == subject


SUBJECT = certificate((COUNTRY, "DE"), (UNIT, "Ops"), (NAME, "Client"))


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("RULE:^CN=(.*?),OU=Ops.*$/$1/L, DEFAULT", "client"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U", "CLIENT@OPS"),
        ("RULE:^CN=(.*?),.*$/$1/", "Client"),
        ("RULE:^CN=(.*?),.*$/$12 $3/", "Client2 $3"),
        ("RULE:^CN=other.*$/x/,DEFAULT", "CN=Client,OU=Ops,C=DE"),
    ],
)
def test_rules(rules: str, name: str) -> None:
    assert namer(read_rules(rules))(SUBJECT) == name


@pytest.mark.parametrize("rules", ["RULE:^CN=other.*$/x/", "RULE:CN=Client/x/"])
def test_a_subject_without_a_rule_is_refused(rules: str) -> None:
    with pytest.raises(BadSubject, match=r"no rule of ssl\.principal\.mapping\.rules"):
        namer(read_rules(rules))(SUBJECT)


@pytest.mark.parametrize("rules", ["CN=x", "RULE:only", "DEFAULT,other", "RULE:(/x/"])
def test_wrong_rules_are_named(rules: str) -> None:
    with pytest.raises(BadRules):
        read_rules(rules)
