"""`listeners`, `advertised.listeners` and the listeners' roles, as one checked value. Pure but for the machine's name."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace

from broker.settings.config import BrokerConfig, ConfigError
from protocol.numbers import is_plain_number
from protocol.types import Endpoint

DEFAULT_CONTROL_LISTENER = "CONTROLLER"
ANY_ADDRESS = ("", "0.0.0.0", "::")
SERVED_PROTOCOLS = ("PLAINTEXT",)
PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where this broker listens (`bound`) and what others are told (`advertised`), by listener name.

    Host "" binds all addresses. A port of 0 is a free one, known after binding: `with_ports` puts it in.
    """

    bound: dict[str, Endpoint]
    advertised: dict[str, Endpoint]
    inter_broker: str
    control_plane: str
    is_control_made: bool = False
    """The control listener is not among `listeners`: it is bound and announced where the inter-broker listener is."""

    def with_ports(self, ports: dict[str, int]) -> Listeners:
        """`ports`: what was bound, by name. An advertised port of 0 becomes it."""
        bound = {name: replace_port(endpoint, ports[name]) for name, endpoint in self.bound.items()}
        advertised = {
            name: endpoint if endpoint.port else replace_port(endpoint, ports[name])
            for name, endpoint in self.advertised.items()
        }
        return replace(self, bound=bound, advertised=advertised)

    @property
    def client_names(self) -> tuple[str, ...]:
        """All but the control plane's: where the Kafka protocol is served."""
        return tuple(name for name in self.bound if name != self.control_plane)

    @property
    def replica_listener(self) -> str | None:
        """The one on which brokers ask as replicas; None when they share it with the clients."""
        return self.inter_broker if len(self.client_names) > 1 else None

    @property
    def is_control_open(self) -> bool:
        """A control listener that was made listens on all addresses, as the inter-broker listener does."""
        return self.is_control_made and self.bound[self.control_plane].host in ANY_ADDRESS


def replace_port(endpoint: Endpoint, port: int) -> Endpoint:
    return endpoint._replace(port=port)


def listeners_of(config: BrokerConfig) -> Listeners:
    """The listeners that the settings ask for. Raises ConfigError that names key and value."""
    protocols = _protocol_map(config.listener_security_protocol_map)
    bound = _parse_list("listeners", config.listeners, protocols)
    control = config.control_plane_listener_name or DEFAULT_CONTROL_LISTENER
    if config.control_plane_listener_name and control not in bound:
        raise ConfigError(f"control.plane.listener.name={control!r}: listeners has {', '.join(bound) or 'none'}")
    clients = [name for name in bound if name != control]
    if not clients:
        raise ConfigError(f"listeners={config.listeners!r}: a listener for clients is needed beside {control}")
    inter_broker = config.inter_broker_listener_name or clients[0]
    if inter_broker not in clients:
        raise ConfigError(f"inter.broker.listener.name={inter_broker!r}: allowed are {', '.join(clients)}")
    told = _parse_list("advertised.listeners", config.advertised_listeners, protocols)
    unknown = [name for name in told if name not in bound]
    if unknown:
        raise ConfigError(f"advertised.listeners names {', '.join(unknown)}; listeners has {', '.join(bound)}")
    is_made = control not in bound
    if is_made:
        # On a free port of the host that brokers reach already.
        bound[control] = Endpoint(control, bound[inter_broker].host, 0)
    advertised = {}
    for name, endpoint in bound.items():
        public = told.get(name)
        if public is None:
            # A made control listener is found where the brokers' own listener is.
            host = told[inter_broker].host if name == control and inter_broker in told else endpoint.host
            public = endpoint._replace(host=_reachable(host) if host in ANY_ADDRESS else host)
        elif public.host in ANY_ADDRESS:
            raise ConfigError(f"advertised.listeners={public}: nobody can reach {public.host or 'an empty host'!s}")
        advertised[name] = public
    return Listeners(bound, advertised, inter_broker, control, is_made)


def _reachable(host: str) -> str:
    """What others call this machine when it listens on all its addresses."""
    return socket.getfqdn() or host or "localhost"


def _protocol_map(text: str) -> dict[str, str]:
    protocols = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, colon, protocol = part.partition(":")
        if not colon or protocol.upper() not in SERVED_PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map={part!r}: allowed is NAME:{' or NAME:'.join(SERVED_PROTOCOLS)}"
            )
        protocols[name.strip().upper()] = protocol.upper()
    return protocols


def _parse_list(key: str, text: str, protocols: dict[str, str]) -> dict[str, Endpoint]:
    endpoints: dict[str, Endpoint] = {}
    ports: dict[tuple[str, int], str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        endpoint = _parse_endpoint(key, part, protocols)
        if endpoint.listener in endpoints:
            raise ConfigError(f"{key}={text!r}: the name {endpoint.listener} is there twice")
        taken = ports.setdefault((endpoint.host, endpoint.port), endpoint.listener)
        if key == "listeners" and endpoint.port and taken != endpoint.listener:
            raise ConfigError(f"{key}={text!r}: {taken} and {endpoint.listener} have the same port {endpoint.port}")
        endpoints[endpoint.listener] = endpoint
    return endpoints


def _parse_endpoint(key: str, part: str, protocols: dict[str, str]) -> Endpoint:
    name, separator, address = part.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not is_plain_number(port) or int(port) > PORT_MAX or not name.strip():
        raise ConfigError(f"{key}={part!r}: allowed is NAME://host:port with a port from 0 to {PORT_MAX}")
    name = name.strip().upper()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if name not in protocols and name not in (*SERVED_PROTOCOLS, DEFAULT_CONTROL_LISTENER):
        raise ConfigError(f"{key}={part!r}: {name} has no entry in listener.security.protocol.map")
    return Endpoint(name, host, int(port), protocols.get(name, "PLAINTEXT"))


def metrics_listener(text: str) -> tuple[str, int]:
    """(host, port) of `host:port`; port 0 is a free one. Raises ConfigError."""
    host, _, port = text.rpartition(":")
    if not host or not is_plain_number(port) or int(port) > 65535:
        raise ConfigError(f"metrics.listener={text!r}: allowed is host:port, for example 127.0.0.1:9404")
    return host.strip("[]"), int(port)
