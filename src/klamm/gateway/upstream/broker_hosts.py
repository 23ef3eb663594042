"""Host names of brokers that share one TLS port: the client names the broker in the TLS handshake (SNI)."""

from __future__ import annotations

import re
from typing import Final

from klamm.properties import SettingsError

PLACEHOLDER: Final = "$(nodeId)"
_HOST: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", re.IGNORECASE)


class BrokerHosts:
    """Host names of all brokers, made from a pattern with the node id.

    Args:
        pattern: Host name with ``$(nodeId)`` in the place of the node id.
        setting: Name of the setting, for error messages.

    Raises:
        SettingsError: The pattern is not a host name, or does not contain ``$(nodeId)`` exactly once.
    """

    def __init__(self, pattern: str, setting: str) -> None:
        before, found, after = pattern.partition(PLACEHOLDER)
        if not found or PLACEHOLDER in after or not _HOST.fullmatch(f"{before}0{after}"):
            raise SettingsError(f"{setting}={pattern}: expected a host name with {PLACEHOLDER} once")
        self._before = before
        self._after = after
        self._name = re.compile(rf"{re.escape(before)}(0|[1-9]\d{{0,8}}){re.escape(after)}\.?", re.IGNORECASE)

    def host_of(self, node_id: int) -> str:
        """Return the host name of a broker."""
        return f"{self._before}{node_id}{self._after}"

    def node_of(self, name: str | None) -> int | None:
        """Return the node id for a name that a client sent; None if it is not the name of a broker."""
        match = self._name.fullmatch(name or "")
        return None if match is None else int(match[1])
