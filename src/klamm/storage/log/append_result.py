"""Result of an append for the producer, and the notification of readers that wait for new records."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

WAITING_ENDS: Final = 2**31 - 1
"""Size passed to waiters that ends any wait, because the log goes away."""


class AppendResult(NamedTuple):
    """Offsets of an appended batch. A named tuple, because one is created for every batch."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 with CreateTime."""
    needs_flush: bool
    """Whether ``flush.messages`` is reached, so that the log must be flushed before the producer gets its response."""


class AppendWaiter(Protocol):
    """A reader that waits for new records, such as a Fetch request."""

    def appended(self, size: int) -> None:
        """Notify the reader of ``size`` new bytes, or of ``WAITING_ENDS`` if the log goes away."""
        ...
