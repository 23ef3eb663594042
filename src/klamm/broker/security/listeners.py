"""The listeners of a broker, by Kafka's names.

``listeners``, ``advertised.listeners`` and ``listener.security.protocol.map`` mean what they mean to Kafka.
``--listen`` takes the same text, and plain HOST:PORT for a listener called PLAINTEXT. With several broker ids each
listener has one address for each, or one whose port is counted up.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

DEFAULT_LISTENER: Final = "PLAINTEXT"
MAX_PORT: Final = 65535
ANY_HOST: Final = "0.0.0.0"  # noqa: S104 - what an empty host means to Kafka
_ADDRESS: Final = re.compile(
    r"(?:(?P<name>[A-Za-z0-9._-]+)://)?(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]/]*):(?P<port>\d{1,5})"
)


class SecurityProtocol(Enum):
    """What is spoken below the Kafka protocol."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_tls(self) -> bool:
        """Tell whether bytes are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        """Tell whether clients log in first."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen, or what clients are told."""

    host: str
    """Empty: every address of the machine."""
    port: int
    """0: any free one."""

    def __str__(self) -> str:
        """Return ``HOST:PORT``, with brackets around an IPv6 host."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A name, what is spoken there, and an address for each broker id."""

    name: str
    """Upper case."""
    protocol: SecurityProtocol
    listen: tuple[Address, ...]
    """By ascending broker id."""
    advertise: tuple[Address, ...] | None
    """What clients are told; None means where it listens."""


def setting_of(configs: Mapping[str, str], listener: str, name: str) -> str | None:
    """Return a setting in force for one listener: its own under ``listener.name.<listener>.``, else the broker's."""
    own = configs.get(f"listener.name.{listener.lower()}.{name}")
    return own if own is not None else configs.get(name)


def parse_listeners(
    text: str, *, advertised: str | None, configs: Mapping[str, str], count: int, flag: str = "listeners"
) -> tuple[Listener, ...]:
    """Read all listeners.

    Args:
        text: ``[NAME://]HOST:PORT``, separated by commas.
        advertised: in the same form; None when clients are told where the broker listens.
        configs: the broker's settings, for ``listener.security.protocol.map``.
        count: how many broker ids there are.
        flag: where ``text`` comes from, for messages.

    Raises:
        SettingsError: An address or a name that cannot be.
    """
    listen = _by_name(text, count, flag)
    controllers = {name.strip().upper() for name in configs.get("controller.listener.names", "").split(",")}
    listen = _without(controllers, listen)  # there is no controller to talk to
    if not listen:
        raise SettingsError(f"{flag} {text!r}: expected at least one listener for clients")
    protocols = _protocols(configs.get("listener.security.protocol.map"))
    told: Mapping[str, tuple[Address, ...]] = {}
    if advertised is not None:
        told = _without(controllers, _by_name(advertised, count, "advertised.listeners", unnamed=next(iter(listen))))
        if unknown := sorted(set(told) - set(listen)):
            raise SettingsError(f"advertised.listeners: {', '.join(unknown)} is not among the listeners")
        if any(not address.host for addresses in told.values() for address in addresses):
            raise SettingsError(
                f"advertised.listeners {advertised!r}: expected a host name that clients can connect to"
            )
        if any(address.host == ANY_HOST for addresses in told.values() for address in addresses):
            raise SettingsError(
                f"advertised.listeners cannot use the nonroutable meta-address {ANY_HOST}. Use a routable IP address."
            )
    listeners = []
    for name, addresses in listen.items():
        if name not in protocols:
            raise SettingsError(f"No security protocol defined for listener {name}: add it to"
                                " listener.security.protocol.map")  # fmt: skip
        listeners.append(Listener(name=name, protocol=protocols[name], listen=addresses, advertise=told.get(name)))
    return tuple(listeners)


def _protocols(text: str | None) -> dict[str, SecurityProtocol]:
    if text is None:
        return {protocol.value: protocol for protocol in SecurityProtocol}
    found = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = entry.partition(":")
        try:
            found[name.strip().upper()] = SecurityProtocol(protocol.strip().upper())
        except ValueError as error:
            raise SettingsError(
                f"listener.security.protocol.map: {entry!r}: expected NAME:PROTOCOL with one of"
                f" {', '.join(protocol.value for protocol in SecurityProtocol)}"
            ) from error
    return found


def _without(names: Set[str], found: Mapping[str, tuple[Address, ...]]) -> dict[str, tuple[Address, ...]]:
    return {name: addresses for name, addresses in found.items() if name not in names}


def _by_name(text: str, count: int, flag: str, unnamed: str = DEFAULT_LISTENER) -> dict[str, tuple[Address, ...]]:
    found: dict[str, list[Address]] = {}
    for part in text.split(","):
        match = _ADDRESS.fullmatch(part.strip())
        if match is None or int(match["port"]) > MAX_PORT or not (match["name"] or match["host"]):
            raise SettingsError(f"{flag} {text!r}: expected [NAME://]HOST:PORT with a port from 0 to {MAX_PORT}")
        address = Address(host=match["host"].strip("[]"), port=int(match["port"]))
        found.setdefault((match["name"] or unnamed).upper(), []).append(address)
    return {name: _one_each(addresses, count, text, flag) for name, addresses in found.items()}


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
    """Return the name under which clients may find a broker that listens on every address."""
    return socket.gethostname() or "localhost"
