"""DIGEST-MD5: the example of RFC 2831, and messages that cannot be used."""

from __future__ import annotations

import pytest

from protocol.digest_md5 import BadChallenge, DigestMd5

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'


def login() -> DigestMd5:
    return DigestMd5("chris", "secret", "imap/elwood.innosoft.com", "OA6MHXh6VqTrRk")


def test_the_example_of_the_rfc() -> None:
    digest = login()
    assert b"response=d388dad90d4bbd760a152321f2143af7" in digest.answer(CHALLENGE)
    digest.check(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")
    with pytest.raises(BadChallenge, match="does not prove"):
        digest.check(b"rspauth=ea40f60335c427b5527b84dbabcdfff0")


def test_a_name_with_quotes() -> None:
    assert b'username="a\\"b\\\\c"' in DigestMd5('a"b\\c', "x", "y/z", "n").answer(CHALLENGE)


@pytest.mark.parametrize(
    ("challenge", "expected"),
    [
        (b"", "no challenge of DIGEST-MD5"),
        (b'nonce="x",algorithm=md5', "no challenge of DIGEST-MD5"),
        (b'nonce="x",qop="auth-conf",algorithm=md5-sess', "does not offer qop=auth"),
        (b'nonce="x', "no message of DIGEST-MD5"),
        (b"\xff\xfe", "no message of DIGEST-MD5"),
    ],
)
def test_other_messages(challenge: bytes, expected: str) -> None:
    with pytest.raises(BadChallenge, match=expected):
        login().answer(challenge)


def test_a_proof_before_the_answer_counts_for_nothing() -> None:
    with pytest.raises(BadChallenge, match="does not prove"):
        login().check(b"rspauth=")
