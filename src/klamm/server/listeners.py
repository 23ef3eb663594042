"""Listeners of a broker or gateway, by Kafka's settings.

``listeners``, ``advertised.listeners`` and ``listener.security.protocol.map`` have Kafka's meaning. ``--listen`` takes
the same text, and plain HOST:PORT for a listener named PLAINTEXT. With several broker ids, a listener has one address
for each id, or a single address whose port is incremented for each further id.
"""

from __future__ import annotations

import re
import socket
from enum import Enum
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

DEFAULT_LISTENER: Final = "PLAINTEXT"
PROTOCOL_MAP: Final = "listener.security.protocol.map"
MAX_PORT: Final = 65535
ANY_HOST: Final = "0.0.0.0"  # noqa: S104 - what an empty host means to Kafka
ANY_HOSTS: Final = frozenset({ANY_HOST, "::"})
_ADDRESS: Final = re.compile(
    r"(?:(?P<name>[A-Za-z0-9._-]+)://)?(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]/]*):(?P<port>\d{1,5})"
)


class SecurityProtocol(Enum):
    """Transport security of a listener."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_tls(self) -> bool:
        """Return whether connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        """Return whether clients must log in by SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address that the broker listens on or advertises."""

    host: str
    """Host name or IP address; empty means all addresses of the machine."""
    port: int
    """Port; 0 means any free one."""

    def __str__(self) -> str:
        """Return ``HOST:PORT``, with brackets around an IPv6 host."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Listener: name, security protocol and one address for each broker id."""

    name: str
    """Name in upper case."""
    protocol: SecurityProtocol
    listen: tuple[Address, ...]
    """Addresses by ascending broker id."""
    advertise: tuple[Address, ...] | None
    """Advertised addresses by ascending broker id; None means the listen addresses."""


def setting_of(configs: Mapping[str, str], listener: str, name: str) -> str | None:
    """Return a setting of a listener: ``listener.name.<listener>.<name>`` if set, else the broker's ``<name>``."""
    own = configs.get(f"listener.name.{listener.lower()}.{name}")
    return own if own is not None else configs.get(name)


def parse_listeners(
    text: str, *, advertised: str | None, configs: Mapping[str, str], count: int, flag: str = "listeners"
) -> tuple[Listener, ...]:
    """Parse the settings of all listeners.

    Args:
        text: Addresses ``[NAME://]HOST:PORT``, separated by commas.
        advertised: Advertised addresses in the same form; None means the listen addresses.
        configs: Settings of the broker, for ``listener.security.protocol.map`` and ``controller.listener.names``.
        count: Number of broker ids.
        flag: Name of the setting or option that holds ``text``, for error messages.

    Raises:
        SettingsError: An address or a listener name is not allowed.
    """
    listen = _by_name(text, count, flag)
    controllers = {name.strip().upper() for name in configs.get("controller.listener.names", "").split(",")}
    listen = _without(controllers, listen)  # klamm has no separate controller to connect to
    if not listen:
        raise SettingsError(f"{flag} {text!r}: expected at least one listener for clients")
    protocols = parse_protocol_map(configs.get(PROTOCOL_MAP))
    advertised_by_name: Mapping[str, tuple[Address, ...]] = {}
    if advertised is not None:
        advertised_by_name = _without(
            controllers, _by_name(advertised, count, "advertised.listeners", unnamed=next(iter(listen)))
        )
        if unknown := sorted(set(advertised_by_name) - set(listen)):
            raise SettingsError(f"advertised.listeners: {', '.join(unknown)} is not among the listeners")
        if any(not address.host for addresses in advertised_by_name.values() for address in addresses):
            raise SettingsError(
                f"advertised.listeners {advertised!r}: expected a host name that clients can connect to"
            )
        if any(address.host == ANY_HOST for addresses in advertised_by_name.values() for address in addresses):
            raise SettingsError(
                f"advertised.listeners cannot use the nonroutable meta-address {ANY_HOST}. Use a routable IP address."
            )
    listeners = []
    for name, addresses in listen.items():
        if name not in protocols:
            raise SettingsError(f"No security protocol defined for listener {name}: add it to"
                                " listener.security.protocol.map")  # fmt: skip
        listeners.append(
            Listener(name=name, protocol=protocols[name], listen=addresses, advertise=advertised_by_name.get(name))
        )
    return tuple(listeners)


def parse_protocol_map(text: str | None, flag: str = PROTOCOL_MAP) -> dict[str, SecurityProtocol]:
    """Return the security protocol of each listener, by its name in upper case.

    Args:
        text: Value of ``listener.security.protocol.map``. None: each protocol is a listener of its name.
        flag: Key that holds ``text``, for error messages.

    Raises:
        SettingsError: An entry is not ``NAME:PROTOCOL``.
    """
    if text is None:
        return {protocol.value: protocol for protocol in SecurityProtocol}
    protocols = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = entry.partition(":")
        try:
            protocols[name.strip().upper()] = SecurityProtocol(protocol.strip().upper())
        except ValueError as error:
            raise SettingsError(
                f"{flag}: {entry!r}: expected NAME:PROTOCOL with one of"
                f" {', '.join(protocol.value for protocol in SecurityProtocol)}"
            ) from error
    return protocols


def _without(names: Set[str], by_name: Mapping[str, tuple[Address, ...]]) -> dict[str, tuple[Address, ...]]:
    return {name: addresses for name, addresses in by_name.items() if name not in names}


def _by_name(text: str, count: int, flag: str, unnamed: str = DEFAULT_LISTENER) -> dict[str, tuple[Address, ...]]:
    by_name: dict[str, list[Address]] = {}
    for part in text.split(","):
        match = _ADDRESS.fullmatch(part.strip())
        if match is None or int(match["port"]) > MAX_PORT or not (match["name"] or match["host"]):
            raise SettingsError(f"{flag} {text!r}: expected [NAME://]HOST:PORT with a port from 0 to {MAX_PORT}")
        address = Address(host=match["host"].strip("[]"), port=int(match["port"]))
        by_name.setdefault((match["name"] or unnamed).upper(), []).append(address)
    return {name: _one_each(addresses, count, text, flag) for name, addresses in by_name.items()}


def _one_each(addresses: Sequence[Address], count: int, text: str, flag: str) -> tuple[Address, ...]:
    if len(addresses) == count:
        return tuple(addresses)
    if len(addresses) != 1:
        raise SettingsError(f"{flag} {text!r}: expected one address per listener, or {count} with --brokers {count}")
    first = addresses[0]
    if first.port and first.port + count - 1 > MAX_PORT:
        raise SettingsError(f"{flag} {text!r}: ports {first.port}..{first.port + count - 1} go beyond {MAX_PORT}")
    return tuple(Address(host=first.host, port=first.port and first.port + index) for index in range(count))


def own_host_name() -> str:
    """Return the host name to advertise when the broker listens on all addresses."""
    return socket.gethostname() or "localhost"
