"""Clients that pipeline, send half of a request, or read nothing, and the waiting time of another one beside them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from klamm.protocol.messages.create_topics import CreateTopicsRequest
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.messages.offset_commit import OffsetCommitRequest
from klamm.protocol.messages.produce import ProduceRequest
from tests.support.wire import WireClient, request_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEBI: Final = 1 << 20
METADATA: Final = MetadataRequest(topics=[], allow_auto_topic_creation=False)
UNKNOWN: Final = bytes.fromhex("0000000a 0012 0063 00000001 ffff") * 50_000
"""ApiVersions of version 99, which a gateway answers itself."""
UNREAD: Final = request_frame(METADATA, 12) * 20_000
UNFINISHED: Final = request_frame(CreateTopicsRequest(topics=[]), 5)[4:]
COMMIT: Final = request_frame(
    OffsetCommitRequest(
        group_id="hostile",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="t",
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=number, committed_offset=0)
                    for number in range(90_000)
                ],
            )
        ],
    ),
    9,
)
PRODUCE: Final = request_frame(
    ProduceRequest(
        acks=-1,
        timeout_ms=1_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=f"hostile-{number}", partition_data=[ProduceRequest.PartitionProduceData(index=0, records=b"")]
            )
            for number in range(40_000)
        ],
    ),
    9,
)


def send_repeatedly(peer: socket.socket, frames: bytes) -> None:
    while True:
        peer.sendall(frames)


def read_all(peer: socket.socket) -> None:
    while peer.recv(MEBI):
        pass


def unfinished(peer: socket.socket, _: bytes) -> None:
    size = (31 if os.environ.get("KLAMM_SOAK") else 3) * MEBI
    peer.sendall(size.to_bytes(4) + UNFINISHED + bytes(size - len(UNFINISHED) - 1))


LOADS: Final[dict[str, tuple[int, bytes, Callable[[socket.socket, bytes], None], bool]]] = {
    "pipelined": (1, UNKNOWN, send_repeatedly, True),
    "unread": (20, UNREAD, send_repeatedly, False),
    "long commits": (1, COMMIT, send_repeatedly, True),
    "long produces": (1, PRODUCE, send_repeatedly, True),
    "unfinished": (12, b"", unfinished, False),
}
"""Number of connections, what each sends and how, and whether it reads."""


@contextlib.contextmanager
def hostile_clients(address: str, load: str) -> Iterator[None]:
    count, frames, send, reads = LOADS[load]
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        threads = []
        for _ in range(count):
            peer = stack.enter_context(socket.create_connection((host, int(port))))
            stack.callback(_shut_down, peer)
            work = [(send, (peer, frames)), *([(read_all, (peer,))] if reads else [])]
            threads += [threading.Thread(target=_until_closed, args=(function, *more)) for function, more in work]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stack.close()
            for thread in threads:
                thread.join(20)


def _until_closed(work: Callable[..., None], *arguments: object) -> None:
    with contextlib.suppress(OSError):
        work(*arguments)


def _shut_down(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def waits(client: WireClient, count: int) -> list[float]:
    """Return the waiting times of requests in seconds, with a pause after each."""
    taken = []
    for _ in range(count):
        taken.append(client.time_raw(METADATA, 12))
        time.sleep(0.002)
    return taken
