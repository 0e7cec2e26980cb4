"""What `--secure` writes (RUN-5): the certificates hold, brokers accept the settings, and each file of a client says the same."""

from __future__ import annotations

import os
import shutil
import ssl
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.settings.config_sources import load
from protocol.tls import certificates_in
from tests.support.cli import ottla
from tools.admin.client_settings import read_librdkafka_config
from tools.admin.naming import Where
from tools.cluster.local_cluster import ClusterError, LocalCluster
from tools.cluster.run_directory import ClientListener, RunDirectory
from tools.cluster.secured.__main__ import make, share
from tools.cluster.secured.authority import Authority, ended_at, past_validity
from tools.cluster.secured.client_files import ClientAccess
from tools.cluster.secured.files import BROKER, USERS, SecuredFiles
from tools.cluster.zookeeper import EmbeddedZooKeeper
from tools.cluster.zookeeper_place import place_of_brokers
from tools.properties_file import read_properties
from tools.wire.client_properties import read_security


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """It has never run."""
    made = LocalCluster(tmp_path / "run")
    made.create(brokers=2, zookeeper="127.0.0.1:1", secure=True)
    return made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server, server_hostname=host)
    waiting = [here, there]
    for _ in range(20):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert waiting == []


def contexts(
    authority: Authority, of_server: str, of_client: str, directory: Path
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    found = []
    for purpose, name, text in (
        (ssl.Purpose.CLIENT_AUTH, "server", of_server),
        (ssl.Purpose.SERVER_AUTH, "client", of_client),
    ):
        context = ssl.create_default_context(purpose, cadata=authority.certificate)
        context.verify_flags |= getattr(ssl, "VERIFY_X509_STRICT", 0)
        context.verify_mode = ssl.CERT_REQUIRED
        (directory / name).write_text(text)
        context.load_cert_chain(directory / name)
        found.append(context)
    return found[0], found[1]


def test_certificates_are_those_of_the_authority(tmp_path: Path) -> None:
    authority = Authority.new("one")
    again = Authority(authority.key, authority.certificate)
    broker, alice = again.sign("broker-1", ["127.0.0.1", "kafka1"]), again.sign("alice")
    for host in ("127.0.0.1", "kafka1"):
        handshake(*contexts(authority, broker, alice, tmp_path), host)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for 'kafka2'"):
        handshake(*contexts(authority, broker, alice, tmp_path), "kafka2")
    expired = authority.sign("broker-1", ["kafka1"], past_validity())
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        handshake(*contexts(authority, expired, alice, tmp_path), "kafka1")
    with pytest.raises(ssl.SSLError, match=r"(?i)unsuitable certificate purpose"):
        handshake(*contexts(authority, alice, alice, tmp_path), "kafka1")
    with pytest.raises(ssl.SSLError, match="verify failed"):
        handshake(*contexts(authority, Authority.new("other").sign("x", ["kafka1"]), alice, tmp_path), "kafka1")


def test_brokers_accept_the_settings(cluster: LocalCluster) -> None:
    for broker in cluster.broker_ids:
        file = cluster.broker_directory(broker) / "server.properties"
        loaded = load(file.read_text(), str(file), {}, [])
        assert loaded.warnings == ()
        assert loaded.config.super_users == "User:admin;User:broker"
    passwords = [(cluster.directory / "security" / "passwords").read_text(), cluster.access("alice").password]
    assert len(set(passwords[0].split())) == 4
    other = LocalCluster(cluster.directory.parent / "other")
    other.create(brokers=1, zookeeper="127.0.0.1:1", secure=True)
    assert other.access("alice").password != passwords[1]


def test_what_clients_are_told(cluster: LocalCluster) -> None:
    alice = cluster.access("alice")
    files = cluster.directory / "security" / "alice"
    java = read_security(files / "client.properties", ignores_others=True)
    librdkafka = read_security(files / "librdkafka.properties", ignores_others=True)
    assert java == librdkafka
    assert (java.protocol, java.mechanism, java.username) == ("SASL_SSL", "SCRAM-SHA-512", "alice")
    certified = read_security(files / "mutual-tls.properties", ignores_others=True)
    assert certified.protocol == "SSL"
    assert certificates_in(certified.certificates) == certificates_in((files / "client.pem").read_text())
    assert read_librdkafka_config(files / "client.properties")["bootstrap.servers"] == cluster.bootstrap_servers
    assert set(alice.mutual_tls_servers.split(",")).isdisjoint(alice.servers.split(","))
    assert alice.password not in repr(alice)


def test_java_finds_files_in_any_directory(tmp_path: Path) -> None:
    """It reads properties as Latin-1."""
    directory = tmp_path / "josé-中-😀"
    LocalCluster(directory).create(brokers=1, zookeeper="127.0.0.1:1", secure=True)
    for name in ("client.properties", "mutual-tls.properties"):
        path = directory / "security" / "alice" / name
        properties = read_properties(path.read_text(encoding="latin-1"))
        (trusted,) = [value for key, value, _ in properties if key == "ssl.truststore.location"]
        assert Path(trusted).exists()
        assert read_security(path, ignores_others=True).trusted


def test_zookeeper_of_the_cluster_has_tls(tmp_path: Path) -> None:
    """It and the brokers have one certificate, and trust that alone; one that has expired is replaced at the start."""
    cluster = LocalCluster(tmp_path / "run")
    cluster.create(brokers=1, secure=True)
    secured = cluster.secured
    assert secured is not None
    place = place_of_brokers(cluster.directory)
    assert place is not None
    assert place.access.protects
    assert place.access.tls is not None
    assert place.access.tls.client_context.cert_store_stats()["x509"] == 1
    assert EmbeddedZooKeeper(cluster.directory / "zookeeper").tls() is not None
    before = secured.zookeeper_file.read_text()
    secured.renew_zookeeper()
    assert secured.zookeeper_file.read_text() == before
    secured.zookeeper_file.write_text(secured.authority().sign("broker", ["127.0.0.1"], past_validity()))
    secured.renew_zookeeper()
    assert ended_at(secured.zookeeper_file.read_text()) is None


def test_commands_find_the_settings(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_BOOTSTRAP_SERVER", raising=False)
    given, found = Path("mine.properties"), cluster.directory / "client.properties"
    assert Where(None, cluster.directory).command_config == found
    assert Where(None, cluster.directory, given).command_config == given
    assert Where("host:9092").command_config is None
    monkeypatch.setenv("OTTLA_COMMAND_CONFIG", "of-the-variable")
    assert Where("host:9092").command_config == Path("of-the-variable")
    assert Where(None, cluster.directory).command_config == found
    assert read_security(found, ignores_others=True).username == "admin"


def test_what_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="there is no user 'eve': the users are admin, alice, bob"):
        cluster.access("eve")
    with pytest.raises(ClusterError, match="there is no user 'broker'"):
        cluster.access("broker")
    plain = LocalCluster(tmp_path / "plain")
    plain.create(brokers=1, zookeeper="127.0.0.1:1")
    with pytest.raises(ClusterError, match="is not secured"):
        plain.access("alice")
    refused = ottla(f"cluster start --secure --dir {plain.directory}")
    assert refused.exit_code == 1
    assert "starts unchanged: leave out" in refused.output
    assert "is not secured" in ottla(f"cluster certificate 1 --dir {plain.directory}").output


def test_a_file_of_somebody_else_is_kept(tmp_path: Path) -> None:
    """RUN-2."""
    (tmp_path / "client.properties").write_text("mine")
    with pytest.raises(ClusterError, match=r"client\.properties is there already"):
        LocalCluster(tmp_path).create(brokers=1, zookeeper="127.0.0.1:1", secure=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("client.properties", "mine")]


def test_only_the_owner_reaches_logs_and_data(tmp_path: Path) -> None:
    """Whatever the umask is: ZooKeeper's data has the verifiers of passwords."""
    before = os.umask(0)
    try:
        LocalCluster(tmp_path / "run").create(brokers=1, links=True, secure=True)
    finally:
        os.umask(before)
    directories = [tmp_path / "run", *(path for path in (tmp_path / "run").iterdir() if path.is_dir())]
    assert {path.name for path in directories} == {"run", "broker-1", "links", "security", "zookeeper"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in directories} == {0o700}


def test_a_directory_where_others_can_put_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = LocalCluster(tmp_path / "shared")
    shared.directory.mkdir()
    shared.directory.chmod(0o1777)
    with pytest.raises(ClusterError, match="everybody can write to it"):
        shared.create(brokers=1, zookeeper="127.0.0.1:1", secure=True)
    shared.directory.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: shared.directory.stat().st_uid + 1)
    with pytest.raises(ClusterError, match="it is somebody else's"):
        shared.create(brokers=1, zookeeper="127.0.0.1:1", secure=True)
    shared.undo_create()
    assert list(shared.directory.iterdir()) == []


def test_a_directory_that_another_command_makes_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made between the look and the lock of this one."""
    late = LocalCluster(tmp_path / "run")
    with ExitStack() as other:

        def made_meanwhile(files: RunDirectory) -> None:
            other.enter_context(RunDirectory(files.path).locked())

        monkeypatch.setattr(RunDirectory, "make_private", made_meanwhile)
        with pytest.raises(ClusterError, match="another command is starting the cluster"):
            late.create(brokers=1, zookeeper="127.0.0.1:1", secure=True)
        late.undo_create()
        assert late.directory.exists()


def test_a_host_that_no_certificate_can_name(tmp_path: Path) -> None:
    clients = ClientListener(advertised="bücher.example")
    with pytest.raises(ClusterError, match=r"no certificate can name the host 'bücher\.example'"):
        LocalCluster(tmp_path / "run").create(brokers=1, zookeeper="127.0.0.1:1", clients=clients, secure=True)
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_was_killed_before_there_was_a_broker(cluster: LocalCluster) -> None:
    before = cluster.access("alice").password
    for broker in cluster.broker_ids:
        shutil.rmtree(cluster.broker_directory(broker))
    again = LocalCluster(cluster.directory)
    again.create(brokers=1, zookeeper="127.0.0.1:1", secure=True)
    assert again.access("alice").password != before


def test_a_certificate_of_a_broker_that_is_stopped(cluster: LocalCluster) -> None:
    file = cluster.directory / "security" / "broker-1.pem"
    before = file.read_text()
    assert "has expired" in ottla(f"cluster certificate 1 --expired --dir {cluster.directory}").output
    assert file.read_text() != before
    assert file.stat().st_mode & 0o777 == 0o600
    refused = ottla(f"cluster start --dir {cluster.directory}")
    assert refused.exit_code == 1
    assert "the certificate of broker 1 expired on" in refused.output
    assert "`ottla cluster certificate 1` makes a new one" in refused.output
    assert "is new" in ottla(f"cluster certificate 1 --dir {cluster.directory}").output
    assert "no ZooKeeper answers" in ottla(f"cluster start --dir {cluster.directory}").output


def test_everything_is_removed(cluster: LocalCluster) -> None:
    (cluster.directory / "notes").write_text("keep")
    cluster.destroy()
    assert [path.name for path in cluster.directory.iterdir()] == ["notes"]


def test_a_directory_of_somebody_else_is_kept(tmp_path: Path) -> None:
    own = tmp_path / "security"
    own.mkdir()
    kept = [own / "authority.pem", tmp_path / "client.properties"]
    for file in kept:
        file.write_text("mine")
    plain = LocalCluster(tmp_path)
    plain.create(brokers=1, zookeeper="127.0.0.1:1")
    assert plain.secured is None
    plain.destroy()
    assert [file.read_text() for file in kept] == ["mine", "mine"]


def test_what_an_interrupted_start_left_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SecuredFiles(tmp_path)
    sign = Authority.sign

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Authority, "sign", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(files, 2, ["kafka1", "kafka2"], "kafka1:1", "kafka1:2")
    monkeypatch.setattr(Authority, "sign", sign)
    make(files, 2, ["kafka1", "kafka2"], "kafka1:1", "kafka1:2")
    assert all((files.path / f"broker-{broker}.properties").exists() for broker in (1, 2))
    passwords = files.passwords()
    make(files, 2, ["kafka1", "kafka2"], "kafka1:1", "kafka1:2")
    assert files.passwords() == passwords


def test_each_container_gets_only_what_it_needs(tmp_path: Path) -> None:
    """And only once the mark that users are to be created: a second start must not set passwords again that an admin has changed."""
    shares = tmp_path / "shares"
    for name in ("broker-1", "broker-2", "clients"):
        (shares / name).mkdir(parents=True)
    files = SecuredFiles(tmp_path / "secured")
    make(files, 2, ["kafka1", "kafka2"], "kafka1:1", "kafka1:2")
    share(files, 2, shares)
    clients = SecuredFiles(shares / "clients")
    assert clients.is_new()
    clients.new_file.unlink()
    make(files, 2, ["kafka1", "kafka2"], "kafka1:1", "kafka1:2")
    share(files, 2, shares)
    assert not clients.is_new()

    def of(name: str) -> set[str]:
        directory = shares / name
        return {str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file()}

    names = ("admin/client.properties", "authority.pem", "broker-2.pem", "broker-2.properties")
    assert of("broker-2") == {f"security/{name}" for name in names}
    own = {str(file.relative_to(files.path.parent)) for file in files.path.rglob("*") if file.is_file()}
    assert own - of("clients") == {
        *(f"security/broker-{broker}.{kind}" for broker in (1, 2) for kind in ("pem", "properties")),
        "security/authority.key",
    }
    assert clients.passwords() == {user: files.passwords()[user] for user in USERS}
    assert files.passwords().keys() - clients.passwords().keys() == {BROKER}
    assert all(not file.stat().st_mode & 0o077 for file in shares.rglob("security/**/*"))


@pytest.mark.parametrize("user", ["new", "passwords"])
def test_users_that_would_be_other_files(cluster: LocalCluster, user: str) -> None:
    assert cluster.secured is not None
    cluster.secured.new_file.unlink()
    with pytest.raises(ClusterError, match="has another use"):
        cluster.secured.add_user(user, "h:1", "h:2")
    assert user not in cluster.secured.passwords()
    assert not cluster.secured.is_new()


def test_plain_names_another_login_module() -> None:
    access = ClientAccess("alice", "secret", "h:1", "h:2", Path("a.pem"), Path("c.pem"))
    assert "plain.PlainLoginModule" in access.java("PLAIN")["sasl.jaas.config"]
    assert "scram.ScramLoginModule" in access.java("SCRAM-SHA-256")["sasl.jaas.config"]
