"""Responses that wait for their peers: sent in pieces, within one budget for all connections."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.protocol.errors import StorageError
from klamm.server import outbox as module
from klamm.server import time_slice
from klamm.server.outbox import ENCRYPTED_PIECE_BYTES, PIECE_BYTES, STALLED_S, Outbox, UnreadBudget
from tests.support.relay_rig import until

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT = 10 * PIECE_BYTES


class Transport:
    """Transport that keeps the written bytes until the peer reads them."""

    def __init__(self, *, is_encrypted: bool = False) -> None:
        self.kept = b""
        self.most = 0
        self.max_kept: int | None = None
        self._extra = {"sslcontext": object()} if is_encrypted else {}

    def get_extra_info(self, name: str) -> object:
        return self._extra.get(name)

    def get_write_buffer_size(self) -> int:
        return len(self.kept)

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        self.max_kept = high

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.kept += bytes(data)
        self.most = max(self.most, len(self.kept))

    def writelines(self, buffers: Sequence[bytes]) -> None:
        self.write(b"".join(buffers))


class Peer:
    """Connection whose peer reads when the test says so. Its transport is full while it keeps any bytes."""

    def __init__(self, budget: UnreadBudget, *, is_encrypted: bool = False) -> None:
        self.transport = Transport(is_encrypted=is_encrypted)
        self.outbox = Outbox(cast("Any", self.transport), budget, self)
        self.was_given_up = False
        write = self.transport.write

        def full(data: bytes) -> None:
            write(data)
            self.outbox.pause()

        self.transport.write = full  # type: ignore[method-assign]

    @property
    def unread_bytes(self) -> int:
        return self.outbox.unread_bytes

    @property
    def taken_bytes(self) -> int:
        return self.outbox.taken_bytes

    def stalled_s(self, now: float) -> float:
        return self.outbox.stalled_s(now)

    def give_up(self) -> None:
        self.was_given_up, self.transport.kept = True, b""

    def read(self) -> bytes:
        data, self.transport.kept = self.transport.kept, b""
        self.outbox.resume()
        return data


class File:
    """A range that knows how much of it was read."""

    def __init__(self, size: int, *, fails: bool = False) -> None:
        self.size = size
        self.fails = fails
        self.was_read = 0

    def __len__(self) -> int:
        return self.size

    def read(self, start: int, size: int) -> bytes:
        if self.fails:
            raise StorageError("The disk rejects")
        assert start == self.was_read
        data = bytes(min(size, self.size - start))
        self.was_read += len(data)
        return data

    def send_to(self, socket: int, start: int, size: int) -> int:
        raise AssertionError("there is no socket")


async def test_file_range_is_read_as_fast_as_the_peer_reads() -> None:
    budget = UnreadBudget(LIMIT)
    peer, file = Peer(budget), File(4 * PIECE_BYTES + 5)
    sending = asyncio.create_task(peer.outbox.send([b"head", file, b"tail"], 8 + len(file)))
    got = b""
    for _ in range(100):
        await asyncio.sleep(0)
        assert file.was_read <= len(got) + 2 * PIECE_BYTES
        got += peer.read()
        if sending.done():
            break
    assert got == b"head" + bytes(len(file)) + b"tail"
    assert peer.transport.most < 2 * PIECE_BYTES
    assert peer.unread_bytes == 0


async def test_large_response_is_sent_in_pieces_and_counted_in_full() -> None:
    budget = UnreadBudget(LIMIT)
    peer, data = Peer(budget), bytes(range(256)) * (4 * PIECE_BYTES // 256)
    sending = asyncio.create_task(peer.outbox.send([data], len(data)))
    await until(lambda: peer.unread_bytes > 0)
    assert peer.unread_bytes == len(data)
    got = b""
    while not sending.done():
        got += peer.read()
        await asyncio.sleep(0)
    assert got + peer.read() == data
    assert peer.transport.most <= PIECE_BYTES


@pytest.mark.parametrize("size", [PIECE_BYTES, 4 * PIECE_BYTES])
async def test_encrypted_response_is_sent_in_smaller_pieces(size: int) -> None:
    """The bytes that an encrypting transport has passed on are not counted."""
    peer, data = Peer(UnreadBudget(LIMIT), is_encrypted=True), bytes(range(256)) * (size // 256)
    sending = asyncio.create_task(peer.outbox.send([b"head", data], 4 + len(data)))
    await until(lambda: peer.unread_bytes > 0)
    assert peer.unread_bytes == 4 + len(data)
    got = b""
    while not sending.done():
        got += peer.read()
        await asyncio.sleep(0)
    assert got + peer.read() == b"head" + data
    assert peer.transport.most <= ENCRYPTED_PIECE_BYTES + 4
    assert peer.transport.max_kept == ENCRYPTED_PIECE_BYTES


async def test_response_of_many_small_pieces_is_sent_in_groups() -> None:
    budget = UnreadBudget(LIMIT)
    peer, sizes = Peer(budget), []
    sending = asyncio.create_task(peer.outbox.send([b"x"] * 2_500, 2_500))
    while not sending.done():
        await asyncio.sleep(0)
        sizes.append(len(peer.read()))
    assert [size for size in sizes if size] == [1_000, 1_000, 500]


async def test_buffer_that_a_response_repeats_is_counted_once() -> None:
    budget = UnreadBudget(LIMIT)
    peer, shared = Peer(budget), bytes(PIECE_BYTES)
    sending = asyncio.create_task(peer.outbox.send([b"head", *[shared] * 100, b"tail"], 8 + 100 * PIECE_BYTES))
    await until(lambda: peer.unread_bytes > 0)
    assert not budget.is_exceeded
    got = 0
    while not sending.done():
        assert peer.unread_bytes <= 8 + 3 * PIECE_BYTES
        got += len(peer.read())
        await asyncio.sleep(0)
    assert got + len(peer.read()) == 8 + 100 * PIECE_BYTES
    assert peer.unread_bytes == 0


async def test_unreadable_file_range_ends_the_response() -> None:
    budget = UnreadBudget(LIMIT)
    peer = Peer(budget)
    with pytest.raises(StorageError):
        await peer.outbox.send([b"head", File(10, fails=True)], 14)


async def test_stalled_connections_are_closed_above_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_S", 0.2)
    budget = UnreadBudget(LIMIT)
    began = asyncio.get_running_loop().time()
    stuck = [Peer(budget) for _ in range(4)]
    sending = [asyncio.create_task(peer.outbox.send([bytes(LIMIT // 3)], LIMIT // 3)) for peer in stuck]
    honest = Peer(budget)
    await until(lambda: budget.is_exceeded)
    assert not honest.outbox.is_ready
    async with asyncio.timeout(60):
        await honest.outbox.ready()
    assert asyncio.get_running_loop().time() - began >= 0.2
    given_up = [peer.was_given_up for peer in stuck]
    assert 1 <= given_up.count(True) <= 2  # no more than is needed
    for task in sending:
        task.cancel()
    await asyncio.gather(*sending, return_exceptions=True)


async def test_outbox_waits_for_reading_peers() -> None:
    budget = UnreadBudget(LIMIT)
    peers = [Peer(budget) for _ in range(8)]
    sending = [asyncio.create_task(peer.outbox.send([bytes(LIMIT // 2)], LIMIT // 2)) for peer in peers]
    async with asyncio.timeout(60):
        while not all(task.done() for task in sending):
            await asyncio.sleep(STALLED_S / 50)
            for peer in peers:
                peer.read()
    assert not any(peer.was_given_up for peer in peers)


async def read_slowly(peer: Peer, *, share: int) -> None:
    """Read a part of the transport's buffer again and again. The transport is never full for long."""
    while not peer.was_given_up:
        await asyncio.sleep(0.01)
        kept = peer.transport.kept
        peer.transport.kept = kept[len(kept) // share :]
        peer.outbox.resume()
        peer.outbox.pause()


async def test_slow_reader_is_aborted_above_the_budget_while_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_S", 0.2)
    budget = UnreadBudget(LIMIT)
    slow, smaller, honest = Peer(budget), Peer(budget), Peer(budget)
    size = LIMIT + PIECE_BYTES
    tasks = [
        asyncio.create_task(slow.outbox.send([bytes(size)], size)),
        asyncio.create_task(smaller.outbox.send([bytes(2 * PIECE_BYTES)], 2 * PIECE_BYTES)),
        asyncio.create_task(read_slowly(slow, share=1_000)),
        asyncio.create_task(read_slowly(smaller, share=1_000)),
    ]
    await until(lambda: budget.is_exceeded)
    async with asyncio.timeout(20):
        await honest.outbox.ready()
    assert (slow.was_given_up, smaller.was_given_up) == (True, False)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the budget count in each turn of the event loop. No transport is full for long."""
    turn = asyncio.sleep

    async def sleep(_seconds: float) -> None:
        await turn(0)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    monkeypatch.setattr(Outbox, "stalled_s", lambda *_: 0.0)


@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize("waits", [False, True])
async def test_slow_reader_is_not_aborted_while_no_request_waits(waits: bool) -> None:
    budget = UnreadBudget(LIMIT)
    slow = Peer(budget)
    sending = asyncio.create_task(slow.outbox.send([bytes(2 * LIMIT)], 2 * LIMIT))
    await until(lambda: budget.is_exceeded)
    waiting = asyncio.create_task(Peer(budget).outbox.ready()) if waits else None
    for _ in range(200):
        await asyncio.sleep(0)
    assert slow.was_given_up == waits == (not budget.is_exceeded)
    sending.cancel()
    if waiting is not None:
        await waiting
    while budget.is_exceeded:
        slow.give_up()
        await asyncio.sleep(0)


@pytest.mark.usefixtures("rounds")
async def test_fast_reader_of_large_response_is_not_aborted_while_requests_wait() -> None:
    budget = UnreadBudget(LIMIT)
    fast, honest = Peer(budget), Peer(budget)
    sending = asyncio.create_task(fast.outbox.send([bytes(4 * LIMIT)], 4 * LIMIT))
    await until(lambda: budget.is_exceeded)
    waiting = asyncio.create_task(honest.outbox.ready())
    while not waiting.done():
        fast.read()
        await asyncio.sleep(0)
    assert 0 < fast.unread_bytes <= LIMIT
    assert not fast.was_given_up
    sending.cancel()


class Reader:
    """Connection whose peer reads so many bytes each second. One that streams is never left with less."""

    def __init__(self, unread_bytes: float, *, a_second: float, streams: bool = False) -> None:
        self.unread_bytes = int(unread_bytes)
        self.taken_bytes = 0
        self.a_second = int(a_second)
        self.streams = streams
        self.was_given_up = False

    def read(self) -> None:
        """Read for the time between two counts of the budget."""
        size = self.a_second // ROUNDS
        self.taken_bytes += size
        if not self.streams:
            self.unread_bytes = max(0, self.unread_bytes - size)

    def stalled_s(self, now: float) -> float:
        return 0.0

    def give_up(self) -> None:
        self.was_given_up, self.unread_bytes = True, 0


ROUNDS = round(STALLED_S / module._RELIEF_S)
MEBI = 1 << 20


async def seconds_until_room(*readers: Reader) -> float:
    """Return how many seconds of reading a request waits, within a minute."""
    budget = UnreadBudget(128 * MEBI)
    for reader in readers:
        budget.add(reader, reader.unread_bytes)
    assert budget.is_exceeded
    waiting = asyncio.create_task(budget.room())
    await asyncio.sleep(0)
    rounds = 0
    while not waiting.done():
        assert rounds < 60 * ROUNDS
        for reader in readers:
            reader.read()
        await asyncio.sleep(0)
        rounds += 1
    return rounds / ROUNDS


@pytest.mark.usefixtures("rounds")
async def test_fast_reader_of_streamed_response_is_not_aborted_while_requests_wait() -> None:
    """Its unread bytes stay the same, because the next piece of the log follows."""
    large = [Reader(110 * MEBI, a_second=45 * MEBI) for _ in range(2)]
    stream = Reader(PIECE_BYTES, a_second=47 * MEBI, streams=True)
    assert 1 < await seconds_until_room(*large, stream) < 1.3
    assert not any(reader.was_given_up for reader in (*large, stream))


@pytest.mark.usefixtures("rounds")
async def test_slow_readers_are_aborted_only_if_that_frees_enough_memory() -> None:
    fast, slow = Reader(300 * MEBI, a_second=100 * MEBI), Reader(60 * MEBI, a_second=MEBI)
    assert 1.9 < await seconds_until_room(fast, slow) < 2.2
    assert (fast.was_given_up, slow.was_given_up) == (False, True)

    fast, slow = Reader(300 * MEBI, a_second=100 * MEBI), Reader(100 * 1024, a_second=10 * 1024)
    assert 1.5 < await seconds_until_room(fast, slow) < 2.2
    assert not fast.was_given_up
    assert not slow.was_given_up


@pytest.mark.usefixtures("rounds")
async def test_fast_readers_of_streams_delay_others_for_ten_seconds() -> None:
    streams = [Reader(MEBI, a_second=10 * MEBI, streams=True) for _ in range(140)]
    large = Reader(20 * MEBI, a_second=10 * MEBI)
    assert 9.5 < await seconds_until_room(*streams, large) < 11.5
    assert sum(stream.was_given_up for stream in streams) == 12
    assert not large.was_given_up


class SlowFile(File):
    """File range. Reading a piece takes a millisecond on the test's clock."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.now = 0.0
        self.pieces_at_once: list[int] = [0]

    def read(self, start: int, size: int) -> bytes:
        self._spend()
        return super().read(start, size)

    def send_to(self, socket: int, start: int, size: int) -> int:
        self._spend()
        return min(size, self.size - start)

    def _spend(self) -> None:
        self.now += 0.001
        self.pieces_at_once[-1] += 1


@pytest.mark.parametrize("socket", [None, 7], ids=["through the transport, as with TLS", "by the kernel"])
async def test_fast_peer_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch, socket: int | None) -> None:
    """Others are served after each time slice, though the socket takes all bytes."""
    file = SlowFile(40 * PIECE_BYTES)
    monkeypatch.setattr(time_slice, "time", SimpleNamespace(perf_counter=lambda: file.now))
    budget = UnreadBudget(LIMIT)
    transport = Transport()
    monkeypatch.setattr(transport, "write", lambda data: None)
    outbox = Outbox(cast("Any", transport), budget, cast("Any", object()), socket)
    sending = asyncio.create_task(outbox.send([file], len(file)))
    while not sending.done():
        file.pieces_at_once.append(0)
        await asyncio.sleep(0)
    assert sum(file.pieces_at_once) == 40
    assert max(file.pieces_at_once) <= time_slice.SLICE_S / 0.001 + 1
