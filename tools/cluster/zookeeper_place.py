"""Which ZooKeeper a command reads, and how it reaches it: by `--zookeeper` and `--zk-tls-config-file`, or as the brokers in `--dir`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from protocol.zk.access import ANONYMOUS, STORES, BadAccess, ZooKeeperAccess, zookeeper_access
from tools.admin.bootstrap import NoBootstrapServer, read_properties
from tools.cluster.links.wiring import BadWiring, LinksDirectory
from tools.failures import AdminError
from tools.properties_file import BadProperties
from tools.properties_file import read_properties as parse_properties


class ZooKeeperPlace(NamedTuple):
    """`connect`: `host:port[,host:port...][/chroot]`."""

    connect: str
    access: ZooKeeperAccess = ANONYMOUS


def place_of_brokers(run_directory: Path) -> ZooKeeperPlace | None:
    """That of the first broker of a run directory, past the links if there are some; None without one. Raises AdminError."""
    for path in sorted(run_directory.glob("broker-*/server.properties")):
        try:
            properties = read_properties(path)
        except NoBootstrapServer as problem:
            raise AdminError(str(problem)) from None
        connect = properties.get("zookeeper.connect", "")
        links = LinksDirectory(run_directory / "links")
        if links.exists():
            with contextlib.suppress(BadWiring):
                connect = links.zookeeper_connect
        return ZooKeeperPlace(connect, broker_access(properties, path.parent)) if connect else None
    return None


def broker_access(properties: Mapping[str, str], directory: Path) -> ZooKeeperAccess:
    """From a broker's settings. Its files are relative to `directory`, where the broker runs. Raises AdminError."""
    absolute = {key: str(directory / properties[key]) for key in STORES if properties.get(key)}
    try:
        return zookeeper_access({**properties, **absolute})
    except BadAccess as problem:
        raise AdminError(f"{directory / 'server.properties'}: {problem}") from None


def named_place(zookeeper: str, config_file: Path | None) -> ZooKeeperPlace:
    """That of `--zookeeper` and `--zk-tls-config-file`. Raises AdminError."""
    return ZooKeeperPlace(zookeeper, ANONYMOUS if config_file is None else file_access(config_file))


def file_access(config_file: Path) -> ZooKeeperAccess:
    """From the file of `--zk-tls-config-file`, whose other settings are ignored, as in Kafka. Raises AdminError."""
    try:
        access = zookeeper_access(read_settings(config_file))
    except BadAccess as problem:
        raise AdminError(f"{config_file}: {problem}") from None
    if access.tls is None and access.login is None:
        raise AdminError(f"{config_file} says nothing about ZooKeeper: it needs zookeeper.ssl.client.enable=true")
    return access


def settings_for_brokers(config_file: Path) -> dict[str, str]:
    """The same file's settings for the `server.properties` of brokers on this machine. Raises AdminError."""
    file_access(config_file)
    found = read_settings(config_file)
    return {key: str(Path(value).absolute()) if key in STORES and value else value for key, value in found.items()}


def read_settings(config_file: Path) -> dict[str, str]:
    """The settings `zookeeper.*` in a file. Raises AdminError."""
    try:
        found = parse_properties(config_file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise AdminError(f"--zk-tls-config-file {config_file}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise AdminError(f"--zk-tls-config-file {config_file}: not a text file") from None
    except BadProperties as problem:
        raise AdminError(f"{config_file}: {problem}") from None
    return {key: value for key, value, _ in found if key.startswith("zookeeper.") and key != "zookeeper.set.acl"}
