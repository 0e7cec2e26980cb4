"""`listeners`, `advertised.listeners` and the listeners' roles, as a single checked value. Pure except for the machine's name."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from broker.settings.config import BrokerConfig, ConfigError
from protocol.numbers import is_plain_number
from protocol.types import Endpoint

DEFAULT_CONTROL_LISTENER = "CONTROLLER"
ANY_ADDRESS = ("", "0.0.0.0", "::")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
DEFAULT_PROTOCOL = "PLAINTEXT"
PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where this broker listens (`bound`) and the addresses for others (`advertised`), by listener name.

    Host "" binds all addresses. Port 0 means a free port, known after binding: `with_ports` sets it.
    """

    bound: dict[str, Endpoint]
    advertised: dict[str, Endpoint]
    inter_broker: str
    control_plane: str
    is_control_automatic: bool = False
    """`listeners` has no control listener, so the broker adds one on the inter-broker listener's host."""

    def with_ports(self, ports: dict[str, int]) -> Listeners:
        """`ports`: the bound ports, by listener name. They replace bound ports, and advertised ports of 0."""
        bound = {name: replace_port(endpoint, ports[name]) for name, endpoint in self.bound.items()}
        advertised = {
            name: endpoint if endpoint.port else replace_port(endpoint, ports[name])
            for name, endpoint in self.advertised.items()
        }
        return replace(self, bound=bound, advertised=advertised)

    def uses_tls(self, name: str) -> bool:
        """Whether the listener is one of TLS."""
        return self.bound[name].security_protocol.endswith("SSL")

    def uses_sasl(self, name: str) -> bool:
        """Whether clients of the listener must log in."""
        return self.bound[name].security_protocol.startswith("SASL_")

    @property
    def client_names(self) -> tuple[str, ...]:
        """All listeners except the control plane's. They serve the Kafka protocol."""
        return tuple(name for name in self.bound if name != self.control_plane)

    @property
    def replica_listener(self) -> str | None:
        """The listener on which brokers send replica ids; None if brokers and clients share one."""
        return self.inter_broker if len(self.client_names) > 1 else None

    @property
    def is_control_open(self) -> bool:
        """True if an automatic control listener listens on all addresses, like the inter-broker listener."""
        return self.is_control_automatic and self.bound[self.control_plane].host in ANY_ADDRESS


def replace_port(endpoint: Endpoint, port: int) -> Endpoint:
    return endpoint._replace(port=port)


def listeners_of(config: BrokerConfig) -> Listeners:
    """The listeners from the settings. Raises ConfigError with key and value."""
    protocols = _protocol_map(config.listener_security_protocol_map)
    bound = _parse_list("listeners", config.listeners, protocols)
    control = config.control_plane_listener_name or DEFAULT_CONTROL_LISTENER
    if config.control_plane_listener_name and control not in bound:
        raise ConfigError(f"control.plane.listener.name={control!r}: listeners has only {', '.join(bound) or 'none'}")
    clients = [name for name in bound if name != control]
    if not clients:
        raise ConfigError(f"listeners={config.listeners!r}: expected a listener for clients in addition to {control}")
    inter_broker = _inter_broker_listener(config, {name: bound[name] for name in clients})
    if control in bound and control not in protocols and control not in PROTOCOLS:
        # In the clear only if somebody says so, or if the brokers' other requests are.
        bound[control] = bound[control]._replace(security_protocol=bound[inter_broker].security_protocol)
    given = _parse_list("advertised.listeners", config.advertised_listeners, protocols)
    unknown = [name for name in given if name not in bound]
    if unknown:
        raise ConfigError(f"advertised.listeners names {', '.join(unknown)}; listeners has only {', '.join(bound)}")
    is_automatic = control not in bound
    if is_automatic:
        # On a free port of the inter-broker listener's host, which the other brokers can reach.
        protocol = protocols.get(control, bound[inter_broker].security_protocol)
        bound[control] = Endpoint(control, bound[inter_broker].host, 0, protocol)
    advertised = {}
    for name, endpoint in bound.items():
        public = given.get(name)
        if public is None:
            # An automatic control listener is on the same host as the brokers' listener.
            host = given[inter_broker].host if name == control and inter_broker in given else endpoint.host
            public = endpoint._replace(host=_reachable(host) if host in ANY_ADDRESS else host)
        elif public.host in ANY_ADDRESS:
            raise ConfigError(f"advertised.listeners={public}: nobody can reach {public.host or 'an empty host'}")
        advertised[name] = public._replace(security_protocol=endpoint.security_protocol)
    return Listeners(bound, advertised, inter_broker, control, is_automatic)


def _inter_broker_listener(config: BrokerConfig, clients: Mapping[str, Endpoint]) -> str:
    """The name that is set; else a listener of the protocol that is set; else the first one. Raises ConfigError."""
    name, protocol = config.inter_broker_listener_name, config.security_inter_broker_protocol
    if name and name not in clients:
        raise ConfigError(f"inter.broker.listener.name={name!r}: expected one of {', '.join(clients)}")
    if protocol == DEFAULT_PROTOCOL:
        return name or next(iter(clients))
    having = [found for found, endpoint in clients.items() if endpoint.security_protocol == protocol]
    if not having or (name and name not in having):
        raise ConfigError(
            f"security.inter.broker.protocol={protocol}: "
            + (
                f"inter.broker.listener.name={name} is no listener of {protocol}"
                if name
                else "listeners has none of it"
            )
        )
    return name or having[0]


def _reachable(host: str) -> str:
    """This machine's name for others, for a listener on all addresses."""
    return socket.getfqdn() or host or "localhost"


def _protocol_map(text: str) -> dict[str, str]:
    protocols = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, colon, protocol = part.partition(":")
        protocol = protocol.strip().upper()
        if not colon or protocol not in PROTOCOLS:
            raise ConfigError(f"listener.security.protocol.map={part!r}: expected NAME:{' or NAME:'.join(PROTOCOLS)}")
        protocols[name.strip().upper()] = protocol
    return protocols


def _parse_list(key: str, text: str, protocols: dict[str, str]) -> dict[str, Endpoint]:
    endpoints: dict[str, Endpoint] = {}
    ports: dict[tuple[str, int], str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        endpoint = _parse_endpoint(key, part, protocols)
        if endpoint.listener in endpoints:
            raise ConfigError(f"{key}={text!r}: the name {endpoint.listener} is listed twice")
        taken = ports.setdefault((endpoint.host, endpoint.port), endpoint.listener)
        if key == "listeners" and endpoint.port and taken != endpoint.listener:
            raise ConfigError(f"{key}={text!r}: {taken} and {endpoint.listener} have the same port {endpoint.port}")
        endpoints[endpoint.listener] = endpoint
    return endpoints


def _parse_endpoint(key: str, part: str, protocols: dict[str, str]) -> Endpoint:
    name, separator, address = part.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not is_plain_number(port) or int(port) > PORT_MAX or not name.strip():
        raise ConfigError(f"{key}={part!r}: expected NAME://host:port with a port from 0 to {PORT_MAX}")
    name = name.strip().upper()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if name not in protocols and name not in (*PROTOCOLS, DEFAULT_CONTROL_LISTENER):
        raise ConfigError(f"{key}={part!r}: {name} has no entry in listener.security.protocol.map")
    protocol = protocols.get(name, name if name in PROTOCOLS else DEFAULT_PROTOCOL)
    return Endpoint(name, host, int(port), protocol)


def metrics_listener(text: str) -> tuple[str, int]:
    """(host, port) of `host:port`; port 0 is a free port. Raises ConfigError."""
    host, _, port = text.rpartition(":")
    if not host or not is_plain_number(port) or int(port) > PORT_MAX:
        raise ConfigError(f"metrics.listener={text!r}: expected host:port, for example 127.0.0.1:9404")
    return host.strip("[]"), int(port)
