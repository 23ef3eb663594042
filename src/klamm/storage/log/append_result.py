"""What an append tells: to the producer where its batch lies, to whoever waits that there is more to read."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

WAITING_ENDS: Final = 2**31 - 1
"""A size that ends any waiting."""


class AppendResult(NamedTuple):
    """Where a batch lies now. A named tuple, since one is made for every batch."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 with CreateTime."""
    needs_flush: bool
    """``flush.messages`` is reached: ``flush`` before the producer is told."""


class AppendWaiter(Protocol):
    """Somebody who waits for more to read."""

    def appended(self, size: int) -> None:
        """Hear of ``size`` more bytes; also when the log goes away, then with a size that ends any waiting."""
        ...
