"""What makes the containers of docker-compose.secure.yml secure: `python -m tools.cluster.secured make|set-up DIR ...`.

`make` writes DIR/security and DIR/client.properties, and settings for each broker, unless all of them are there. With `--shares SHARES`,
each container gets only what it needs: SHARES/broker-<id> has the broker's own key and settings, and how admin connects; SHARES/clients has
what all users have. The authority's key stays in DIR. `set-up` creates users and rights when the brokers serve, unless that is done.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterable
from pathlib import Path

from protocol.numbers import whole_number
from tools.admin.bootstrap import addresses_of
from tools.admin.naming import CLIENT_PROPERTIES
from tools.cluster.secured.files import ADMIN, BROKER, CONTROLLER, OWNERS_DIRECTORY, PASSWORD_BYTES, USERS, SecuredFiles
from tools.cluster.secured.rights import set_up
from tools.failures import errors_in_one_line
from tools.private_files import OWNER_ONLY, write_anew


def make(files: SecuredFiles, brokers: int, hosts: list[str], servers: str, mutual_tls_servers: str) -> None:
    """`hosts`: how clients and brokers name the brokers. Raises ClusterError, OSError."""
    last = 1
    if _settings_file(files, last).exists():
        return
    files.remove()  # what a start that was interrupted has left
    ids = range(brokers, last - 1, -1)
    files.create(ids, hosts, servers, mutual_tls_servers)
    at_zookeeper = {
        "zookeeper.digest.user": BROKER,
        "zookeeper.digest.password": secrets.token_urlsafe(PASSWORD_BYTES),
        "zookeeper.set.acl": "true",
    }
    for broker in ids:
        # In Compose, clients in other containers use the brokers' own listener.
        settings = {**files.settings(broker, [CONTROLLER]), **at_zookeeper}
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        write_anew(_settings_file(files, broker), lines, OWNER_ONLY)


def share(files: SecuredFiles, brokers: int, shares: Path) -> None:
    """Copies what each container needs, in the places that it has in `files`. Raises ClusterError, OSError."""
    trusted, admins = files.authority_file, files.path / ADMIN / CLIENT_PROPERTIES
    for broker in range(1, brokers + 1):
        of_broker = (trusted, files.keystore(broker), _settings_file(files, broker), admins)
        _copy(files, of_broker, shares / f"broker-{broker}")
    of_users = [file for user in USERS for file in sorted((files.path / user).iterdir())]
    of_clients = SecuredFiles(shares / "clients")
    _copy(files, (trusted, files.client_properties, *of_users), shares / "clients")
    words = {user: word for user, word in files.passwords().items() if user in USERS}
    of_clients.write_passwords(words)
    if files.is_new():
        write_anew(of_clients.new_file, "", OWNER_ONLY)
        files.new_file.unlink()  # `set-up` removes the copy when it is done


def _copy(files: SecuredFiles, sources: Iterable[Path], share_of_one: Path) -> None:
    above = files.path.parent
    for source in sources:
        target = share_of_one / source.relative_to(above)
        for directory in (target.parent.parent, target.parent):
            if directory != share_of_one and directory.is_relative_to(share_of_one):
                directory.mkdir(mode=OWNERS_DIRECTORY, exist_ok=True)
        write_anew(target, source.read_text(), OWNER_ONLY)


def _settings_file(files: SecuredFiles, broker: int) -> Path:
    return files.path / f"broker-{broker}.properties"


def create_users(files: SecuredFiles, servers: str) -> None:
    """`servers`: where the brokers are reached from here, by SASL_SSL. Raises ClusterError."""
    if files.is_new():
        set_up([files.access(user, servers, servers) for user in USERS], addresses_of(servers), has_acls=True)
        files.new_file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster.secured", description=__doc__)
    parser.add_argument("what", choices=("make", "set-up"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--servers", required=True, help="HOST:PORT,... of the listeners with a login")
    parser.add_argument(
        "--mutual-tls-servers", default="", help="HOST:PORT,... of the listeners that want a certificate"
    )
    parser.add_argument("--hosts", default="", help="HOST,... that the brokers' certificates name")
    parser.add_argument("--brokers", type=whole_number, default=3)
    parser.add_argument("--shares", type=Path, help="the directory with one for each container")
    given = parser.parse_args()
    files = SecuredFiles(given.directory)
    with errors_in_one_line():
        if given.what == "make":
            make(files, given.brokers, given.hosts.split(","), given.servers, given.mutual_tls_servers)
            if given.shares is not None:
                share(files, given.brokers, given.shares)
        else:
            create_users(files, given.servers)


if __name__ == "__main__":
    main()
