"""The server's side of SASL PLAIN (RFC 4616) and SCRAM (RFC 5802) as Kafka speaks them: a token in, a token out. Pure.

Kafka's classes are PlainSaslServer and ScramSaslServer. What differs: a login by SCRAM of a user who does not exist ends at the same
step as one with a wrong password, and the binding of the channel is checked.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping

from broker.security.delegation_tokens import TokenLogin
from broker.security.scram_users import ScramUsers
from protocol.scram import HASHES, ITERATIONS_MIN, NO_BINDING, Credential

PLAIN = "PLAIN"

VALUE = r"[^\x00,]+"
NONCE = r"[\x21-\x2b\x2d-\x7e]+"
USER = r"(?:[^\x00=,]|=2C|=3D)+"
BASE64 = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
EXTENSIONS = rf"(?:,[A-Za-z]+={VALUE})*"
CLIENT_FIRST = re.compile(rf"(n,(?:a=({USER}))?,)((?:m={VALUE},)?n=({USER}),r=({NONCE})({EXTENSIONS}))")
CLIENT_FINAL = re.compile(rf"(c=({BASE64}),r=({NONCE}){EXTENSIONS}),p=({BASE64})")
BY_TOKEN = "tokenauth"
"""The extension, `true`, by which a client says that user and password are those of a delegation token (KIP-48)."""
FindToken = Callable[[str, str], TokenLogin | None]
"""(mechanism, id) -> the token; None: there is no such token, or it has expired."""
ANOTHER_ID = "Authentication failed: Client requested an authorization id that is different from username"


class LoginRefused(Exception):
    """`text` is what the client gets; "": Kafka's general text for wrong credentials. `reason` is for the log; "": that has it already."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.text = text


class Mechanism(ABC):
    """One login."""

    def __init__(self) -> None:
        self.user = ""
        """The name that the client gives; "" until it is known."""
        self.is_complete = False
        """Whether the user is who it says."""
        self.lifetime_ms = 0
        """How long what the user has shown counts; 0: for ever."""
        self.refusal = ""
        """For the log: why the client has been refused, although it is still to confirm that. "": it has not been."""
        self.owner: str | None = None
        """As whom the client has logged in by a delegation token; None: as the user, and by no token."""

    @abstractmethod
    def take(self, token: bytes) -> bytes:
        """The answer to the client's token. Raises LoginRefused."""


class Plain(Mechanism):
    """`passwords`: by user."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        super().__init__()
        self._passwords = passwords

    def take(self, token: bytes) -> bytes:
        parts = token.decode("utf-8", "replace").split("\0")
        if len(parts) != 3:
            raise LoginRefused(f"a token of {len(parts)} parts; PLAIN has 3")
        acts_as, self.user, password = parts
        if not self.user:
            raise LoginRefused("it names no user", "Authentication failed: username not specified")
        if not password:
            raise LoginRefused("it has no password", "Authentication failed: password not specified")
        expected = self._passwords.get(self.user)
        # Compared in any case, so that both take the same time.
        is_right = hmac.compare_digest(password.encode(), (expected or "").encode())
        if expected is None or not is_right:
            reason = "there is no such user" if expected is None else "the password is wrong"
            raise LoginRefused(reason, "Authentication failed: Invalid username or password")
        if acts_as and acts_as != self.user:
            raise LoginRefused("it wants to act as another user", ANOTHER_ID)
        self.is_complete = True
        return b""


class Scram(Mechanism):
    """`nonce`: random, printable, without a comma. `secret` makes up the salts of users who do not exist. `find_token`: finds delegation
    tokens; None: there are none.
    """

    def __init__(
        self,
        mechanism: str,
        users: ScramUsers,
        nonce: str,
        secret: bytes,
        find_token: FindToken | None = None,
        wall_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__()
        self._by_token: TokenLogin | None = None
        self._find_token = find_token
        self._wall_ms = wall_ms
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._users = users
        self._secret = secret
        self._nonce = nonce
        self._credential: Credential | None = None
        self._is_made_up = False
        self._bindings: tuple[bytes, ...] = ()
        self._messages = b""

    def take(self, token: bytes) -> bytes:
        if self.is_complete:
            raise LoginRefused("a token after the last one")
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise LoginRefused("a token that is no text") from None
        return self._final(text) if self._credential is not None else self._first(text)

    def _first(self, text: str) -> bytes:
        found = CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise LoginRefused("its first message is not that of SCRAM without channel binding")
        header, acts_as, bare, name, nonce, extensions = found.groups()
        self.user = _plain(name)
        if acts_as is not None and _plain(acts_as) != self.user:
            raise LoginRefused("it wants to act as another user", ANOTHER_ID)
        given = dict(pair.split("=", 1) for pair in extensions.split(",") if pair)
        if given.get(BY_TOKEN, "").lower() != "true":
            known = self._users.credential(self._mechanism, self.user)
        elif self._find_token is None:
            raise LoginRefused(
                "there are no delegation tokens without delegation.token.secret.key, and none of brokers"
            )
        else:
            self._by_token = self._find_token(self._mechanism, self.user)
            known = self._by_token.credential if self._by_token is not None else None
        self._is_made_up = known is None
        self._credential = credential = known or self._made_up()
        # Kafka's client always names the binding of a header without a user to act as.
        self._bindings = (header.encode(), NO_BINDING)
        self._nonce = nonce + self._nonce
        answer = f"r={self._nonce},s={b64encode(credential.salt).decode()},i={credential.iterations}"
        self._messages = f"{bare},{answer}".encode()
        return answer.encode()

    def _made_up(self) -> Credential:
        """The same in each attempt, as a real one."""
        salt = hmac.digest(self._secret, f"{self._mechanism} {self.user}".encode(), "sha256")[:20]
        size = hashlib.new(self._hash).digest_size
        return Credential(salt, bytes(size), bytes(size), ITERATIONS_MIN)

    def _final(self, text: str) -> bytes:
        found = CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise LoginRefused("its last message is not that of SCRAM")
        without_proof, binding, nonce, proof = found.groups()
        # librdkafka before 2.6.1 puts its own nonce before this one, and Kafka 3.9 accepts it. The proof is of all that was sent.
        if not nonce.endswith(self._nonce):
            raise LoginRefused("it answers with another nonce")
        if b64decode(binding) not in self._bindings:
            raise LoginRefused("it answers with another binding of the channel")
        assert self._credential is not None
        message = self._messages + b"," + without_proof.encode()
        signature = hmac.digest(self._credential.stored_key, message, self._hash)
        proven = b64decode(proof)
        key = bytes(left ^ right for left, right in zip(signature, proven, strict=False))
        is_right = hmac.compare_digest(hashlib.new(self._hash, key).digest(), self._credential.stored_key)
        if not is_right or self._is_made_up or len(proven) != len(signature):
            raise LoginRefused("there is no such user" if self._is_made_up else "the password is wrong")
        if self._by_token is not None:
            self.owner = self._by_token.owner
            self.lifetime_ms = max(self._by_token.expires_ms - self._wall_ms(), 1)
        self.is_complete = True
        return b"v=" + b64encode(hmac.digest(self._credential.server_key, message, self._hash))


def _plain(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
