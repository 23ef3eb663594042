"""Counters per client, dropped once the client is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_MANY: Final = 1_000


class _Counted(Protocol):
    def is_idle(self, now_s: float) -> bool: ...


Counted = TypeVar("Counted", bound=_Counted)


class ClientCounters(Generic[Counted]):
    """One counter for each key. Used on the event loop only.

    Args:
        new: Function that creates the counter of a new key.
    """

    def __init__(self, new: Callable[[], Counted]) -> None:
        self._new = new
        self._counts: dict[Hashable, Counted] = {}

    def __len__(self) -> int:
        """Return the number of counters."""
        return len(self._counts)

    def of(self, key: Hashable, now_s: float) -> Counted:
        """Return the counter of a key. Once there are 1,000, idle ones are dropped before a new one is created."""
        count = self._counts.get(key)
        if count is None:
            if len(self._counts) >= _MANY:
                self._counts = {k: c for k, c in self._counts.items() if not c.is_idle(now_s)}
            count = self._counts[key] = self._new()
        return count
