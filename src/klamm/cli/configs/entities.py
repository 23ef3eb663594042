"""Entities whose configs ``klamm configs`` shows and changes, in the terms of Kafka's tool."""

from __future__ import annotations

import re
import socket
from typing import Final

from klamm.cli.connection import RequestError
from klamm.lazy_dataclass import dataclass

ENTITY_TYPES: Final = (
    "topics",
    "clients",
    "users",
    "brokers",
    "ips",
    "client-metrics",
    "groups",
    "broker-loggers",
)

_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The entities selected by the flags: entities of one type, or users and clients together."""

    types: tuple[str, ...]
    names: tuple[str, ...]
    """Names in the order of the types; "" is the default entity. A type without a name selects all of that type."""

    @property
    def has_quotas(self) -> bool:
        """Return whether users, their clients or IP addresses are selected: the entities that have quotas."""
        return self.types[0] in {"users", "clients", "ips"}

    def name_of(self, kind: str) -> str | None:
        """Return the name given for a type: "" for the default entity, None if no name was given."""
        if kind not in self.types or self.types.index(kind) >= len(self.names):
            return None
        return self.names[self.types.index(kind)]

    def check_ids(self) -> None:
        """Check that broker ids are numbers, and that the names of ``ips`` are IP addresses or resolvable hosts.

        Raises:
            RequestError: A name is invalid for its type.
        """
        kind = self.types[0]
        if kind == "ips":
            for name in filter(None, self.names):
                _check_address(name)
        if kind in {"brokers", "broker-loggers"}:
            for name in self.names:
                if name and _INTEGER.fullmatch(name) is None:
                    raise RequestError(
                        f"The entity name for {kind} must be a valid integer broker id, but it is: {name}"
                    )

    def completed(self) -> str:
        """Return the message printed after a change."""
        kind, name = self.types[0], self.names[0]
        if name:
            return f"Completed updating config for {kind[:-1]} {name}."
        return f"Completed updating default config for {kind} in the cluster."

    def valid(self) -> str:
        """Return the message printed when ``--validate-only`` finds a change valid."""
        kind, name = self.types[0], self.names[0]
        return f"Valid: config for {kind[:-1]} {name}." if name else f"Valid: default config for {kind} in the cluster."


def _check_address(name: str) -> None:
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:
        raise RequestError(
            f"The entity name for ips must be a valid IP or resolvable host, but it is: {name}"
        ) from error
