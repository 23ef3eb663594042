"""Reusable memory for large frames. Allocating a new bytearray costs as much as copying the data into it."""

from __future__ import annotations

from typing import Final

_POOLED_FROM: Final = 64 * 1024


class FrameBuffer:
    """Memory of one frame with a reference count. It returns to its pool when the last user releases it.

    Views of ``data`` must not be read after their holder has released the buffer.
    """

    __slots__ = ("_pool", "_users", "data")

    def __init__(self, data: bytearray, pool: BufferPool | None) -> None:
        self.data = data
        self._users = 1
        self._pool = pool

    def retain(self) -> None:
        """Increment the number of users."""
        self._users += 1

    def release(self) -> None:
        """Decrement the number of users."""
        self._users -= 1
        if self._users == 0 and self._pool is not None:
            self._pool.give_back(self.data)
            self._pool = None


class BufferPool:
    """Pool of free buffers whose sizes are powers of two. Thread-confined."""

    def __init__(self, *, max_free_bytes: int) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._free_bytes = 0
        self._max_free_bytes = max_free_bytes

    def take(self, size: int) -> FrameBuffer:
        """Return memory of at least ``size`` bytes (exactly ``size`` if it is small)."""
        if size < _POOLED_FROM:
            return FrameBuffer(bytearray(size), None)
        rounded = 1 << (size - 1).bit_length()
        free = self._free.get(rounded)
        if free:
            self._free_bytes -= rounded
            return FrameBuffer(free.pop(), self)
        return FrameBuffer(bytearray(rounded), self)

    def give_back(self, data: bytearray) -> None:
        """Keep memory for reuse, or discard it if the pool has enough."""
        if self._free_bytes + len(data) <= self._max_free_bytes:
            self._free_bytes += len(data)
            self._free.setdefault(len(data), []).append(data)
