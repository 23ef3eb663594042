"""Waiting time of a client while hostile ones pipeline, send half of a request, or read nothing.

That no step holds the event loop is tested without a clock (``test_long_requests.py``, ``test_pipelining.py``). Here
whole processes are under load. A long run (``KLAMM_SOAK=1``) limits what is added to the waiting time, and logs it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import statistics
import threading
import time
from typing import TYPE_CHECKING, Final

import pytest

import klamm
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.messages.offset_commit import OffsetCommitRequest
from tests.support.wire import WireClient, request_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

IS_SOAK: Final = bool(os.environ.get("KLAMM_SOAK"))
REQUESTS: Final = 1_000 if IS_SOAK else 20
TOPICS: Final = 5_000 if IS_SOAK else 1_000
"""Topics in a request that a gateway keeps until it is complete."""
MAX_ADDED_S: Final = 0.05
"""Limit of the waiting time that hostile clients add, for 99 requests of 100."""
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


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with klamm.Broker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def gateway(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text("rules:\n  - name: groups\n    group_naming: '[a-z]+'\n")
    config = {"flow.policy.class.name": "klamm.policy.rules:RulesPolicy", "policy.rules.file": str(rules)}
    with klamm.Gateway(broker, config={**config, "change.history.enable": "true"}) as gateway:
        yield gateway.bootstrap_servers


def send_again_and_again(peer: socket.socket, frames: bytes) -> None:
    while True:
        peer.sendall(frames)


def read_all(peer: socket.socket) -> None:
    while peer.recv(MEBI):
        pass


def unfinished(peer: socket.socket, _: bytes) -> None:
    size = (31 if IS_SOAK else 3) * MEBI
    peer.sendall(size.to_bytes(4) + UNFINISHED + bytes(size - len(UNFINISHED) - 1))


LOADS: Final[dict[str, tuple[int, bytes, Callable[[socket.socket, bytes], None], bool]]] = {
    "pipelined": (1, UNKNOWN, send_again_and_again, True),
    "unread": (20, UNREAD, send_again_and_again, False),
    "long commits": (1, COMMIT, send_again_and_again, True),
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


def waits(client: WireClient) -> list[float]:
    """Return the waiting times of requests in seconds, with a pause after each."""
    taken = []
    for _ in range(REQUESTS):
        taken.append(client.time_raw(METADATA, 12))
        time.sleep(0.002)
    return taken


@pytest.mark.parametrize("load", LOADS if IS_SOAK else ("unfinished",))
@pytest.mark.parametrize("server", ["broker", "gateway"] if IS_SOAK else ["gateway"])
def test_other_clients_are_served_beside_hostile_ones(server: str, load: str, request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue(server)
    topic = CreateTopicsRequest.CreatableTopic
    topics = [topic(name=f"large-{number}", num_partitions=1, replication_factor=1) for number in range(TOPICS)]
    large = CreateTopicsRequest(topics=topics, timeout_ms=60_000, validate_only=True)
    with WireClient(address, timeout_s=60) as client:
        before = waits(client)
        with hostile_clients(address, load):
            beside = waits(client)
            assert len(client.ask(large, CreateTopicsResponse, 5).topics) == TOPICS
    usual, slow = (statistics.quantiles(each, n=100)[-1] for each in (before, beside))
    logger.warning(
        "%s, %s: median %.1f ms, 99 %% within %.1f ms, without hostile clients %.1f ms and %.1f ms",
        server, load, statistics.median(beside) * 1000, slow * 1000, statistics.median(before) * 1000, usual * 1000,
    )  # fmt: skip
    assert not IS_SOAK or slow - usual <= MAX_ADDED_S
