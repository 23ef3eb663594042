"""Connection limits: ``max.connections`` of the broker and of a listener, ``max.connections.per.ip``.

The file descriptors of the process are a further limit, so connections never use up those that the logs need.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from klamm.hosts import host_forms
from klamm.properties import parse_list

if TYPE_CHECKING:
    from collections.abc import Callable


_NO_LIMIT: Final = 2**31 - 1


class ConnectionSlot:
    """Place of one admitted connection among the limits.

    Args:
        give_back: Function that subtracts the connection.
    """

    __slots__ = ("_give_back",)

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        """Give the place back, because the connection has ended. Does nothing the second time."""
        if self._give_back is not None:
            give_back, self._give_back = self._give_back, None
            give_back()


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

    def admit(self, address: str, listener: str) -> ConnectionSlot | None:
        """Count a connection that was accepted. Return None when a limit is reached.

        A connection counts from here on, before its TLS handshake, as in Kafka (ConnectionQuotas).
        """
        own_limit = self._limit(f"listener.name.{listener.lower()}.max.connections")
        if self._total >= min(self._limit("max.connections"), self._most) or self._by_listener[listener] >= own_limit:
            return None
        if self._by_address[address] >= self._limit_of(address):
            return None
        self._by_address[address] += 1
        self._by_listener[listener] += 1
        self._total += 1
        return ConnectionSlot(partial(self._release, address, listener))

    def _release(self, address: str, listener: str) -> None:
        self._total -= 1
        self._by_listener[listener] -= 1
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]

    def _limit_of(self, address: str) -> int:
        overrides = str(self._broker_value("max.connections.per.ip.overrides") or "")
        forms = host_forms(address)
        for entry in parse_list(overrides):
            host, _, limit = entry.rpartition(":")
            if host.strip() in forms and limit.strip().isdigit():
                return int(limit)
        return self._limit("max.connections.per.ip")

    def _limit(self, name: str) -> int:
        value = self._broker_value(name)
        return value if isinstance(value, int) else _NO_LIMIT
