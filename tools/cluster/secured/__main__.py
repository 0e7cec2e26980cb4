"""What makes the containers of docker-compose.secure.yml secure: `python -m tools.cluster.secured make|set-up DIR ...`.

`make` writes DIR/security and DIR/client.properties, and settings for each broker, unless all of them are there. `set-up` creates users and
rights when the brokers serve, unless that is done.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from protocol.numbers import whole_number
from tools.admin.bootstrap import addresses_of
from tools.cluster.secured.files import USERS, SecuredFiles
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
    for broker in ids:
        lines = "".join(f"{key}={value}\n" for key, value in files.settings(broker).items())
        write_anew(_settings_file(files, broker), lines, OWNER_ONLY)


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
    given = parser.parse_args()
    files = SecuredFiles(given.directory)
    with errors_in_one_line():
        if given.what == "make":
            make(files, given.brokers, given.hosts.split(","), given.servers, given.mutual_tls_servers)
        else:
            create_users(files, given.servers)


if __name__ == "__main__":
    main()
