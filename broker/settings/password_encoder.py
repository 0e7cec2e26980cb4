"""Passwords as Kafka stores them in ZooKeeper: encrypted by a key from `password.encoder.secret` (`EncryptingPasswordEncoder`).

A stored password says how it was encrypted, as `keyFactoryAlgorithm:PBKDF2WithHmacSHA512,keyLength:128,...`. So it can be read after any
change of the settings but that of the secret.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

KEY_FACTORIES: Final[Mapping[str, str]] = {
    "PBKDF2WithHmacSHA512": "sha512",
    "PBKDF2WithHmacSHA384": "sha384",
    "PBKDF2WithHmacSHA256": "sha256",
    "PBKDF2WithHmacSHA224": "sha224",
    "PBKDF2WithHmacSHA1": "sha1",
}
"""Java's names. The first one is the default."""
CBC, GCM = "AES/CBC/PKCS5Padding", "AES/GCM/NoPadding"
CIPHERS: Final = (CBC, GCM)
KEY_LENGTHS: Final = (128, 192, 256)
"""Of AES, in bits."""
ITERATIONS_MAX: Final = 10_000_000
"""They take several seconds of a thread."""
SALT_BYTES: Final = 256
BLOCK_BITS: Final = 128
GCM_VECTOR_BYTES: Final = 12
TAG_BYTES: Final = 16
UTF_16: Final = "utf-16-le"


class BadPassword(ValueError):
    """A stored password cannot be read. The text says why, and has nothing of it."""


@dataclass(frozen=True, slots=True)
class PasswordEncoder:
    """Encrypts and decrypts by one secret. Both take some milliseconds per 4,096 iterations, so call them in a thread.

    `key_length` in bits, one of KEY_LENGTHS; `cipher` and `key_factory` by Java's names. They count for new passwords only.
    """

    secret: str = field(repr=False)
    key_factory: str
    cipher: str
    key_length: int
    iterations: int

    def encode(self, password: str) -> str:
        """The text to store."""
        from cryptography.hazmat.primitives import padding
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        salt = os.urandom(SALT_BYTES)
        key = self._key(self.key_factory, salt, self.iterations, self.key_length)
        parts = {
            "keyFactoryAlgorithm": self.key_factory,
            "cipherAlgorithm": self.cipher,
            "keyLength": str(self.key_length),
            "salt": _text(salt),
            "iterations": str(self.iterations),
            "passwordLength": str(_length(password)),
        }
        if self.cipher == GCM:
            vector = os.urandom(GCM_VECTOR_BYTES)
            encrypted = AESGCM(key).encrypt(vector, password.encode(), None)
            parts["authenticationTagLength"] = str(8 * TAG_BYTES)
        else:
            vector = os.urandom(BLOCK_BITS // 8)
            padder = padding.PKCS7(BLOCK_BITS).padder()
            encryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
            padded = padder.update(password.encode()) + padder.finalize()
            encrypted = encryptor.update(padded) + encryptor.finalize()
        parts |= {"initializationVector": _text(vector), "encryptedPassword": _text(encrypted)}
        return ",".join(f"{name}:{value}" for name, value in parts.items())

    def decode(self, stored: str) -> str:
        """The password. Raises BadPassword."""
        from cryptography.exceptions import InvalidTag

        parts = dict(part.rpartition(":")[::2] for part in stored.split(","))
        try:
            key_factory, cipher = parts["keyFactoryAlgorithm"], parts["cipherAlgorithm"]
            key_length, iterations = int(parts["keyLength"]), int(parts["iterations"])
            salt, vector = _bytes(parts["salt"]), _bytes(parts["initializationVector"])
            encrypted, length = _bytes(parts["encryptedPassword"]), int(parts["passwordLength"])
            tag_bits = int(parts["authenticationTagLength"]) if cipher == GCM else 0
        except KeyError as missing:
            raise BadPassword(f"it is not an encrypted password: it has no {missing.args[0]}") from None
        except ValueError:
            raise BadPassword("it is not an encrypted password: a number or bytes of it cannot be read") from None
        if key_factory not in KEY_FACTORIES or cipher not in CIPHERS or key_length not in KEY_LENGTHS:
            raise BadPassword("it is encrypted in a way that is not supported")
        if not 1 <= iterations <= ITERATIONS_MAX:
            raise BadPassword(f"its key takes {iterations} iterations, and may take {ITERATIONS_MAX}")
        key = self._key(key_factory, salt, iterations, key_length)
        try:
            decrypt = _from_gcm if cipher == GCM else _from_cbc
            password = decrypt(key, vector, encrypted, tag_bits).decode()
        except (ValueError, InvalidTag):
            raise BadPassword("password.encoder.secret is not the one by which it is encrypted") from None
        if _length(password) != length:
            raise BadPassword("password.encoder.secret is not the one by which it is encrypted")
        return password

    def _key(self, key_factory: str, salt: bytes, iterations: int, bits: int) -> bytes:
        return hashlib.pbkdf2_hmac(KEY_FACTORIES[key_factory], self.secret.encode(), salt, iterations, bits // 8)


def _from_cbc(key: bytes, vector: bytes, encrypted: bytes, _: int) -> bytes:
    from cryptography.hazmat.primitives import padding
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
    padded = decryptor.update(encrypted) + decryptor.finalize()
    unpadder = padding.PKCS7(BLOCK_BITS).unpadder()
    password: bytes = unpadder.update(padded) + unpadder.finalize()
    return password


def _from_gcm(key: bytes, vector: bytes, encrypted: bytes, tag_bits: int) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if tag_bits != 8 * TAG_BYTES:
        raise ValueError("another tag")
    password: bytes = AESGCM(key).decrypt(vector, encrypted, None)
    return password


def _length(password: str) -> int:
    """As Java counts: in units of UTF-16."""
    return len(password.encode(UTF_16)) // 2


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)
