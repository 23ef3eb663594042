"""Connection limits: ``max.connections`` of the broker and of a listener, ``max.connections.per.ip``.

The file descriptors of the process are a further limit, so connections never use up those that the logs need.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


_NO_LIMIT: Final = 2**31 - 1


class ConnectionLimits:
    """Counter of admitted connections. Used on the event loop only.

    Args:
        broker_value: Function that returns the current value of a broker config. It is called for each connection, so
            dynamic changes apply at once.
        most: Number of file descriptors that connections may use.
    """

    def __init__(self, broker_value: Callable[[str], object], *, most: int = _NO_LIMIT) -> None:
        self._most = most
        self._broker_value = broker_value
        self._by_address: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._total = 0

    def admit(self, address: str, listener: str) -> bool:
        """Count a connection and return True, or return False when a limit is reached."""
        own_limit = self._limit(f"listener.name.{listener.lower()}.max.connections")
        if self._total >= min(self._limit("max.connections"), self._most) or self._by_listener[listener] >= own_limit:
            return False
        if self._by_address[address] >= self._limit_of(address):
            return False
        self._by_address[address] += 1
        self._by_listener[listener] += 1
        self._total += 1
        return True

    def release(self, address: str, listener: str) -> None:
        """Subtract an admitted connection that has ended."""
        self._total -= 1
        self._by_listener[listener] -= 1
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]

    def _limit_of(self, address: str) -> int:
        overrides = str(self._broker_value("max.connections.per.ip.overrides") or "")
        for entry in filter(None, (part.strip() for part in overrides.split(","))):
            host, _, limit = entry.rpartition(":")
            if host.strip() == address and limit.strip().isdigit():
                return int(limit)
        return self._limit("max.connections.per.ip")

    def _limit(self, name: str) -> int:
        value = self._broker_value(name)
        return value if isinstance(value, int) else _NO_LIMIT
