"""`--command-config`: what is read from it, what is refused with the line, and that no error shows a secret."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from protocol.bearer import claims_of, unsecured_token
from protocol.jaas import BadJaas, Login, read_jaas
from tests.support.certificates import KEY_PASSWORD, Certificates
from tools.replay.run.access import take_access, write_access
from tools.replay.run.plan import OutputDirectory, ReplayError
from tools.wire.client_properties import BadClientProperties, read_security
from tools.wire.security import PLAINTEXT, Security

SECRET = "hush-hush"
PLAIN_JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="{SECRET}";'
SCRAM_JAAS = PLAIN_JAAS.replace("plain.Plain", "scram.Scram")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "client.properties"


def test_nothing_given_is_plaintext() -> None:
    assert read_security(None, []) == PLAINTEXT
    assert PLAINTEXT.tls_context() is None


@pytest.mark.parametrize(
    ("text", "mechanism"),
    [
        (f"sasl.mechanism=PLAIN\nsasl.username=me\nsasl.password={SECRET}", "PLAIN"),
        (f"sasl.mechanisms=scram-sha-256\nsasl.username=me\nsasl.password={SECRET}", "SCRAM-SHA-256"),
        (f"sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN_JAAS}", "PLAIN"),
        ("sasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config=" + SCRAM_JAAS.replace(" ", " \\\n   "), "SCRAM-SHA-512"),
    ],
)
def test_logins(file: Path, text: str, mechanism: str) -> None:
    file.write_text(f"security.protocol=sasl_plaintext\n{text}\n")
    assert read_security(file, []) == Security("SASL_PLAINTEXT", mechanism, "me", SECRET)


def test_an_option_counts_more_than_the_file(file: Path) -> None:
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=x\nsasl.password={SECRET}")
    assert read_security(file, [("sasl.username", "me")]).username == "me"


def test_certificates(certificates: Certificates, file: Path) -> None:
    trusted = f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={certificates.authority}\n"
    file.write_text(trusted)
    security = read_security(file, [])
    assert security.checks_host
    context = security.tls_context()
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1
    inline = certificates.authority.read_text().replace("\n", "\\n")
    file.write_text(
        f"security.protocol=SSL\nssl.truststore.certificates={inline}\n{'ssl.endpoint.identification.algorithm='}"
    )
    assert read_security(file, []).tls_context().check_hostname is False  # type: ignore[union-attr]
    own = f"ssl.keystore.type=PEM\nssl.keystore.location={certificates.client}\nssl.key.password={KEY_PASSWORD}"
    file.write_text(trusted + own)
    with_client = read_security(file, [])
    assert with_client.tls_context() is not None
    librdkafkas = f"ssl.certificate.location={certificates.client}\nssl.key.location={certificates.client}"
    file.write_text(f"{trusted}{librdkafkas}\nssl.key.password={KEY_PASSWORD}")
    assert read_security(file, []) == with_client
    file.write_text(f"{trusted}ssl.keystore.location={certificates.client}\nssl.key.password={SECRET}")
    with pytest.raises(BadClientProperties, match=r"line 4: ssl.keystore.location: .*is ssl.key.password right"):
        read_security(file, [])


SASL = "security.protocol=SASL_PLAINTEXT\n"
BEARER = f"{SASL}\nsasl.mechanism=OAUTHBEARER\n"
LOGIN = f"{SASL}sasl.mechanism=PLAIN\nsasl.username=me\nsasl.password={SECRET}\n"
TLS = "security.protocol=SSL\n"


def test_tokens(file: Path, tmp_path: Path) -> None:
    """Of a file, which may change, or of the options of the login module."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    file.write_text(f'{BEARER}sasl.jaas.config={module} unsecuredLoginStringClaim_sub="{SECRET}";\n')
    security = read_security(file, [])
    assert claims_of(security.token())["sub"] == SECRET
    assert SECRET not in repr(security)
    token = tmp_path / "my token"
    file.write_text(f"{BEARER}sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n")
    security = read_security(file, [])
    for text in (unsecured_token({"unsecuredLoginStringClaim_sub": "a"}, 1000.0), "another"):
        token.write_text(f"{text}\n")
        assert security.token() == text
    token.write_text(unsecured_token({"unsecuredLoginStringClaim_sub": "a"}, 1000.0))
    assert security.librdkafka_properties()["oauth_cb"]("") == (security.token(), 4600.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("linger.ms=5", "line 1: linger.ms: this does not say how to connect; remove it"),
        ("# mine\nacks=all", "line 2: acks: this does not say how to connect"),
        ("bootstrap.servers=h:1", "use --bootstrap-server"),
        ("sasl.kerberos.service.name=kafka", "not supported; these are: security.protocol, "),
        ("securty.protocol=SSL", "unknown property; did you mean security.protocol?"),
        ("ssl.keystore.password=x", "only PEM stores are supported, and they have no password"),
        ("security.protocol=TLS", "'TLS' is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (f"sasl.password={SECRET}", "no effect with security.protocol=PLAINTEXT; set it to SASL_PLAINTEXT or SASL_SSL"),
        ("ssl.ca.location=/x", "no effect with security.protocol=PLAINTEXT; set it to SSL or SASL_SSL"),
        (SASL, "also set sasl.mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        (
            f"{BEARER}",
            "security.protocol: it names nobody: set unsecuredLoginStringClaim_sub; or set sasl.oauthbearer.token",
        ),
        (f"{BEARER}sasl.username=me", "sasl.username: no effect with OAUTHBEARER; remove it"),
        (f"{BEARER}sasl.jaas.config={PLAIN_JAAS}", "the login module is not for OAUTHBEARER"),
        (f"{BEARER}sasl.oauthbearer.token.endpoint.url=https://x/y", "only file:///... is supported"),
        (
            f"{BEARER}sasl.login.callback.handler.class=a.Mine",
            "not supported; expected OAuthBearerLoginCallbackHandler or",
        ),
        (
            f"{SASL}\nsasl.mechanism=PLAIN\nsasl.oauthbearer.token.endpoint.url=file:///x",
            "no effect with sasl.mechanism=PLAIN; set it to OAUTHBEARER",
        ),
        (f"{SASL}sasl.mechanism=GSSAPI", "'GSSAPI' is not one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (f"{SASL}sasl.mechanism=PLAIN\nsasl.username=me", "line 2: sasl.mechanism: PLAIN needs sasl.username and"),
        (f"{LOGIN}sasl.jaas.config={PLAIN_JAAS}", "line 3: sasl.username: sasl.jaas.config is given, too"),
        (f"{LOGIN}sasl.mechanisms=PLAIN", "line 5: sasl.mechanisms: sasl.mechanism is given, too"),
        (f"{SASL}sasl.mechanism=PLAIN\nsasl.jaas.config={SCRAM_JAAS}", "line 3: sasl.jaas.config: the login module is"),
        (f"{SASL}sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN_JAAS[:-2]}", "a quote is not closed"),
        (f"{TLS}ssl.truststore.type=JKS", "only PEM; convert it: keytool -list -rfc"),
        (f"{TLS}ssl.truststore.location=/dev/null", "line 2: ssl.truststore.location: it has no certificate in PEM"),
        (f"{TLS}ssl.ca.location=/nowhere", "line 2: ssl.ca.location: /nowhere: No such file or directory"),
        (f"{TLS}ssl.ca.pem=-----BEGIN CERTIFICATE-----x-----END CERTIFICATE-----", "its certificates cannot be read"),
        (f"{TLS}ssl.key.location=/nowhere", "the certificate is missing; set ssl.keystore.location"),
        (f"{TLS}ssl.endpoint.identification.algorithm=http", "'http' is not one of https, none, (empty)"),
        ("a=\\u1", "line 1: \\u needs four hexadecimal digits"),
    ],
)
def test_refused(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(BadClientProperties) as caught:
        read_security(file, [])
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{file}: line ")
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_refused_options_and_files(tmp_path: Path) -> None:
    with pytest.raises(BadClientProperties, match=r"^--client-property linger\.ms: this does not say how to connect"):
        read_security(None, [("linger.ms", "5")])
    with pytest.raises(BadClientProperties, match="No such file"):
        read_security(tmp_path / "missing", [])
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(BadClientProperties, match="not a text file"):
        read_security(tmp_path / "binary", [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PLAIN_JAAS, Login("PLAIN", "me", SECRET)),
        ("ScramLoginModule REQUIRED username=me password='x y' ;", Login("SCRAM", "me", "x y")),
        (
            r'ScramLoginModule required password="a\"b\\c;=" username="";',
            Login("SCRAM", "", r"a\"b\c;=".replace(r"\"", '"')),
        ),
    ],
)
def test_jaas(text: str, expected: Login) -> None:
    assert read_jaas(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected org.apache"),
        ("ScramLoginModule required username=me password=x", "expected org.apache"),
        ("ScramLoginModule required username me;", "expected org.apache.*ScramLoginModule required username"),
        ("PlainLoginModule required username=me password=x", "expected org.apache.*PlainLoginModule required username"),
        ("OAuthBearerLoginModule needed;", "expected org.apache.*OAuthBearerLoginModule required;"),
        ("com.sun.Krb5LoginModule required useKeyTab=true;", "Krb5LoginModule is not supported"),
        ("ScramLoginModule required username=me password=x tokenauth=true;", "option tokenauth is not supported"),
        ("ScramLoginModule required username=me;", "it needs username and password"),
    ],
)
def test_jaas_refused(text: str, says: str) -> None:
    with pytest.raises(BadJaas, match=says):
        read_jaas(text)


def test_the_job_takes_the_passwords_once(tmp_path: Path) -> None:
    from tests.support.replay_runs import a_plan

    output = OutputDirectory(tmp_path)
    security = Security("SASL_PLAINTEXT", "PLAIN", "me", SECRET)
    assert SECRET not in repr(security)
    write_access(output, security)
    assert output.access.stat().st_mode & 0o777 == 0o600
    plan = a_plan(tmp_path, security_protocol=security.protocol)
    assert take_access(output, plan) == security
    assert not output.access.exists()
    with pytest.raises(ReplayError, match="a job reads it once"):
        take_access(output, plan)
    write_access(output, PLAINTEXT)
    assert not output.access.exists()
    assert take_access(output, a_plan(tmp_path)) == PLAINTEXT
