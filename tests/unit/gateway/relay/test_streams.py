"""One side of a relayed connection, with a socket that takes a limited number of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from klamm.gateway.relay.streams import MAX_BYTES, MIN_BYTES, Backlog, RelayedSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class FullSocket:
    """Transport with so much room, and the event loop that waits for more."""

    def __init__(self) -> None:
        self.room = 0
        self.on_writable: Callable[[], None] | None = None

    def fileno(self) -> int:
        return -1

    def send_views(self, views: Sequence[memoryview]) -> int:
        sent = min(self.room, sum(map(len, views)))
        self.room -= sent
        return sent

    def add_writer(self, _descriptor: int, callback: Callable[[], None]) -> None:
        self.on_writable = callback

    def remove_writer(self, _descriptor: int) -> None:
        self.on_writable = None


def test_write_limit_shrinks_for_a_slow_peer_and_grows_back() -> None:
    backlog, full = Backlog(), FullSocket()
    loop: Any = full
    side = RelayedSocket(cast("Any", full), loop, backlog, on_readable=lambda: None, on_drained=lambda _: None)
    chunk = memoryview(bytes(MAX_BYTES))
    limits: list[int] = []
    for room in (MAX_BYTES, 100_000, 1, *[MAX_BYTES] * 7):
        full.room = room
        side.send([chunk[: side.max_bytes]])
        assert backlog.kept_bytes == side.kept_bytes == max(0, (limits or [MAX_BYTES])[-1] - room)
        limits.append(side.max_bytes)
        if full.on_writable is not None:
            full.room = MAX_BYTES
            full.on_writable()
        assert not side.is_blocked
    assert limits == [MAX_BYTES, 65_536, *[MIN_BYTES << number for number in range(7)], MAX_BYTES]
