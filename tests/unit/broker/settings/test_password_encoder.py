"""Passwords as Kafka 3.9.1 encrypts them, and the other way round; what is wrong with the rest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.settings.password_encoder import CBC, CIPHERS, GCM, KEY_FACTORIES, KEY_LENGTHS, BadPassword, PasswordEncoder

SECRET, PASSWORD = "the secret of é", "päss, word: 😀"
SHA512, *_, SHA1 = KEY_FACTORIES
KAFKAS = {
    "of the defaults": (
        "initializationVector:sLfAL5956lTl/wjgmst6qg==,keyLength:128,salt:3yhsHkDHLaG7BgWBDwQF0laS1HA8GGCdGOFRg7mJLUa9NSYa+E84jC0S"
        "vTfsIKN6hZcJyxjn66HjdwhoZB28MA2At6ErSZ/3Z1k6kiacBISu6xMIDX2PlShfpoysRtKPWfgZ51FqAqnfVe1ZqjeIzOXhm3hwQ9Qx3zYTD1X/tvFtASkP"
        "azNwbDyrLoybdt7nbkvVv6JoeCzwKzcWHz84n9EA9eIwITCz3XnTCiF5FB332zOnBqAUyl94dyajoKX7QA0SGJUSq56ywbl/JFL2OucrTMmYrGAAzYisqIHo"
        "dlPb+Bzm2Pe9iFurmEcLsCuBrn67/c3+Ku+FYMkMKzMOpQ==,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Pad"
        "ding,iterations:4096,passwordLength:14,encryptedPassword:fYEcGN6GaExJlSd0VVvMvrPlVTGAjHL5vUr6SUqR6r4="
    ),
    "of SHA-1": (
        "initializationVector:uInOTtXN1o3f9gRY5n/gjg==,keyLength:256,salt:apcbZKPR4WVDSA9J1bdnMrcLBzLAY4wYqMIsL2s+6ikhEBjfoxAFcewc"
        "Wku2Ztz1zAHpfkTcEK+V+bkLM9Ub9M49pai1qa8uEiq8ffi+z7e9JLNY9wBSPrKpNCl7Ovtd84ZyrqmcqC5qY4meWQG+ir0bvjFOVwy7nQsg8lJCJIWycIKa"
        "5rMplVo2yRcr084T0Xz4X+wPzQ5BiRyJ5fuAcaer3xn1ywYTeYxQCViynwpezptZsn4hmp9gsi5izj6gWz2LGNlOmgd93etoS64CUKmEV52QMtxpb+14+iIo"
        "jX/ygUi0uFBIfRHopMXl/ehk4pM+Gz7VoBrSET8Xjp2UfQ==,keyFactoryAlgorithm:PBKDF2WithHmacSHA1,cipherAlgorithm:AES/CBC/PKCS5Paddi"
        "ng,iterations:1024,passwordLength:14,encryptedPassword:ukxAtHKfqH683BUWCmmboMaaVlOVeHFgEmI/EJsoZxg="
    ),
    "of GCM": (
        "initializationVector:hCzf0yUVhWePLFvi,keyLength:192,salt:fGopBvrTfReFnQXsYVkrZLEJflpQ62y2F6vCcu2Bdep7ZJja6pC/rr5oiOUUdCbm"
        "p1upfnv1bWyMnYx+hXVonYxX+2xa/lXqwI+9fvCTPBb1t4oy7tD2C00SzDEQoqdElGgexeNyvB3txmNfta1uicaBUlss2nc+2GZjy0QwS79QrZ6105uACV3b"
        "kAODR7g50tbKeIbQaXlvFy62WI1d7Zg5ivxDtXGZ7nksq/VE3Zabm/dNjs9Sau+kxreR3Jhy/rq+6xTNUqOwjIutXG0QT7XKqBQp6oLnZIDN8WLjxa90baY+"
        "zK1z89Vd4r+sh6xzaqYceAIzfIr+JNIw02W6ew==,keyFactoryAlgorithm:PBKDF2WithHmacSHA256,cipherAlgorithm:AES/GCM/NoPadding,authen"
        "ticationTagLength:128,iterations:2048,passwordLength:14,encryptedPassword:UNJXADm8uV50g5v+1RBV/Z+a3aZQdlLvdHnDVQl4C5+N"
    ),
}  # fmt: skip
"""SECRET and PASSWORD by `PasswordEncoder.encrypting` of Kafka 3.9.1."""


def encoder(secret: str = SECRET, key_factory: str = SHA512, cipher: str = CBC, bits: int = 128) -> PasswordEncoder:
    return PasswordEncoder(secret, key_factory, cipher, bits, 1024)


@pytest.mark.parametrize("name", KAFKAS)
def test_a_password_of_kafka_is_read(name: str) -> None:
    assert encoder().decode(KAFKAS[name]) == PASSWORD


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("bits", KEY_LENGTHS)
@pytest.mark.parametrize("key_factory", KEY_FACTORIES)
def test_what_was_encrypted_is_read_with_any_other_settings(cipher: str, bits: int, key_factory: str) -> None:
    stored = encoder(key_factory=key_factory, cipher=cipher, bits=bits).encode(PASSWORD)
    assert encoder().decode(stored) == PASSWORD
    assert "word" not in stored.replace("Password", "").replace("password", "")
    assert encoder(key_factory=key_factory, cipher=cipher, bits=bits).encode(PASSWORD) != stored


@settings(max_examples=50)
@given(st.text(max_size=100), st.sampled_from(CIPHERS))
def test_any_text_comes_back(text: str, cipher: str) -> None:
    one = PasswordEncoder(SECRET, SHA1, cipher, 128, 1)
    assert one.decode(one.encode(text)) == text


@pytest.mark.parametrize("name", KAFKAS)
def test_another_secret_reads_nothing(name: str) -> None:
    with pytest.raises(BadPassword, match=r"password\.encoder\.secret is not the one"):
        encoder("another").decode(KAFKAS[name])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("keyLength:128,", "", "it has no keyLength"),
        ("iterations:4096", "iterations:many", "a number or bytes of it cannot be read"),
        ("iterations:4096", "iterations:2000000000", "its key takes 2000000000 iterations, and may take 10000000"),
        ("iterations:4096", "iterations:0", "its key takes 0 iterations"),
        ("keyLength:128", "keyLength:64", "it is encrypted in a way that is not supported"),
        ("AES/CBC", "DES/CBC", "it is encrypted in a way that is not supported"),
        ("WithHmacSHA512", "WithHmacMD5", "it is encrypted in a way that is not supported"),
        ("salt:3yhs", "salt:!yhs", "a number or bytes of it cannot be read"),
        ("Vector:sLfAL5956lTl/wjgmst6qg==", "Vector:sLfA", "is not the one"),
        ("passwordLength:14", "passwordLength:13", "is not the one"),
        ("Password:fYEcGN6", "Password:", "a number or bytes of it cannot be read|is not the one"),
    ],
)
def test_what_is_wrong_with_a_stored_password_is_said(before: str, after: str, expected: str) -> None:
    stored = KAFKAS["of the defaults"].replace(before, after)
    assert stored != KAFKAS["of the defaults"]
    with pytest.raises(BadPassword, match=expected):
        encoder().decode(stored)


def test_a_changed_byte_is_noticed_with_gcm() -> None:
    stored = encoder(cipher=GCM).encode(PASSWORD)
    head, _, encrypted = stored.rpartition("encryptedPassword:")
    other = "A" if encrypted[0] != "A" else "B"
    with pytest.raises(BadPassword, match="is not the one"):
        encoder().decode(f"{head}encryptedPassword:{other}{encrypted[1:]}")


@settings(max_examples=200)
@given(st.text(max_size=200))
def test_rubbish_is_no_password(text: str) -> None:
    with pytest.raises(BadPassword):
        encoder().decode(text)


def test_the_secret_is_in_no_text_of_the_encoder() -> None:
    assert SECRET not in repr(encoder())
