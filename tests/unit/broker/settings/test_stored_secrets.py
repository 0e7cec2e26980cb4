"""Dynamic passwords between ZooKeeper and the broker: what is encrypted, what cannot be read, and a new secret."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.settings import stored_secrets
from broker.settings.config import BrokerConfig, ConfigError
from broker.settings.password_encoder import PasswordEncoder
from broker.settings.stored_secrets import StoredSecrets, without_secrets

KEY_PASSWORD = "listener.name.external.ssl.key.password"
STORE_PASSWORD = "listener.name.external.ssl.keystore.password"
LOCATION = "listener.name.external.ssl.keystore.location"
PLAIN = {KEY_PASSWORD: "sesame", STORE_PASSWORD: "opens", LOCATION: "/a.pem", "max.connections": "9"}
CONFIG = BrokerConfig(broker_id=1, password_encoder_secret="new one", password_encoder_iterations=1024)
OLD = replace(CONFIG, password_encoder_secret="old one")


async def test_only_passwords_are_encrypted() -> None:
    stored = await StoredSecrets(CONFIG).encoded(PLAIN)
    assert stored.keys() == {KEY_PASSWORD, STORE_PASSWORD}
    assert "sesame" not in stored[KEY_PASSWORD]
    assert await StoredSecrets(CONFIG).decoded({**PLAIN, **stored}) == (PLAIN, [])
    assert await StoredSecrets(CONFIG).encoded({LOCATION: "/a.pem"}) == {}


async def test_what_was_read_before_is_not_decrypted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = StoredSecrets(CONFIG)
    stored = {**PLAIN, **await StoredSecrets(CONFIG).encoded(PLAIN)}
    decrypted: list[str] = []
    real = PasswordEncoder.decode

    def decode(self: PasswordEncoder, text: str) -> str:
        decrypted.append(text)
        return real(self, text)

    monkeypatch.setattr(PasswordEncoder, "decode", decode)
    for _ in range(2):
        assert await secrets.decoded(stored) == (PLAIN, [])
    assert sorted(decrypted) == sorted((stored[KEY_PASSWORD], stored[STORE_PASSWORD]))
    del stored[STORE_PASSWORD]
    assert STORE_PASSWORD not in (await secrets.decoded(stored))[0]
    assert len(decrypted) == 2


async def test_what_cannot_be_read_is_left_out_with_the_reason() -> None:
    stored = {**PLAIN, **await StoredSecrets(OLD).encoded(PLAIN)}
    readable, complaints = await StoredSecrets(CONFIG).decoded(stored)
    assert readable == {LOCATION: "/a.pem", "max.connections": "9"}
    assert complaints == [
        f"{key} cannot be read: password.encoder.secret is not the one by which it is encrypted"
        for key in (KEY_PASSWORD, STORE_PASSWORD)
    ]
    readable, complaints = await StoredSecrets(BrokerConfig(broker_id=1)).decoded(stored)
    assert readable == {LOCATION: "/a.pem", "max.connections": "9"}
    assert complaints[0] == f"{KEY_PASSWORD} cannot be read: password.encoder.secret is not set"


async def test_without_a_secret_nothing_is_stored() -> None:
    with pytest.raises(
        ConfigError, match=r"key\.password cannot be stored: password\.encoder\.secret is not set"
    ) as it:
        await StoredSecrets(BrokerConfig(broker_id=1)).encoded(PLAIN)
    assert "sesame" not in str(it.value)


async def test_what_would_be_too_long_in_zookeeper_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is too long: encrypted, it has 4\d{4} characters, and may have 32767"):
        await StoredSecrets(CONFIG).encoded({KEY_PASSWORD: "x" * 32_000})


async def test_a_new_secret_encrypts_what_the_old_one_reads() -> None:
    both = StoredSecrets(replace(CONFIG, password_encoder_old_secret="old one"))
    of_old = await StoredSecrets(OLD).encoded({KEY_PASSWORD: "sesame"})
    of_new = await StoredSecrets(CONFIG).encoded({STORE_PASSWORD: "opens"})
    of_nobody = {"listener.name.other.ssl.key.password": "rubbish"}
    anew = await both.encoded_anew({LOCATION: "/a.pem", **of_old, **of_new, **of_nobody})
    assert anew.keys() == {KEY_PASSWORD}
    assert await StoredSecrets(CONFIG).decoded(anew) == ({KEY_PASSWORD: "sesame"}, [])
    assert await both.encoded_anew({**of_old, **anew}) == {}, "the second time there is nothing to do"
    assert await StoredSecrets(CONFIG).encoded_anew(of_old) == {}, "without an old secret"


async def test_an_old_secret_without_a_new_one_is_an_error_if_there_are_passwords() -> None:
    alone = StoredSecrets(BrokerConfig(broker_id=1, password_encoder_old_secret="old one"))
    assert await alone.encoded_anew({LOCATION: "/a.pem"}) == {}
    with pytest.raises(ConfigError, match=r"old\.secret has no effect: password\.encoder\.secret is not set"):
        await alone.encoded_anew(await StoredSecrets(OLD).encoded(PLAIN))


def test_logs_have_no_passwords() -> None:
    hidden = stored_secrets.HIDDEN
    assert without_secrets(PLAIN) == {**PLAIN, KEY_PASSWORD: hidden, STORE_PASSWORD: hidden}
