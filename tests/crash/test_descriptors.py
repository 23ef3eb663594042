"""Brokers with few file descriptors, also while idle connections use them up: storage keeps working."""

from __future__ import annotations

import contextlib
import re
import resource
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest

from klamm.protocol.records import Record, encode_batch
from tests.support.klamm import KlammBroker
from tests.support.processes import free_port, wait_until
from tests.support.security import Certificates
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BATCH = encode_batch([Record(None, b"v", (), int(time.time() * 1000))])


@contextmanager
def limited(hard: int) -> Iterator[None]:
    """Let processes that are started have so many descriptors, and half of them without asking for more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    patch = pytest.MonkeyPatch()
    command = KlammBroker.command

    def with_limit(self: KlammBroker) -> list[str | Path]:
        return ["prlimit", f"--nofile={hard // 2}:{hard}", *command(self)]

    patch.setattr(KlammBroker, "command", with_limit)
    try:
        yield
    finally:
        patch.undo()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def idle_connections(port: int, count: int) -> list[socket.socket]:
    """Open idle connections. Those that the broker closes at once do not count."""
    peers = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            peers.append(socket.create_connection(("127.0.0.1", port), timeout=5))
    return peers


def close_all(peers: list[socket.socket]) -> None:
    for peer in peers:
        peer.close()


def wait_until_they_are_gone(broker: KlammBroker) -> None:
    """Wait until the broker has closed its side as well. Until then it rejects new connections."""

    process = psutil.Process(broker.pid)

    def are_gone() -> bool:
        return all(each.status != psutil.CONN_CLOSE_WAIT for each in process.net_connections("tcp"))

    wait_until(are_gone, timeout_s=60, what="the strangers' connections to end")


def fill(client: WireClient, topic: str, partitions: int) -> None:
    """Create a topic, write to each partition and read it back."""
    client.create_topic(topic, partitions=partitions)
    for _ in range(2):
        for partition in range(partitions):
            client.produce(topic, partition, BATCH)
    for partition in range(partitions):
        assert sum(1 for _ in client.read_to_end(topic, partition)) == 2


@pytest.mark.long
def test_hundreds_of_partitions_work_with_256_descriptors() -> None:
    """256 is the default of macOS. Before, the 235th partition failed permanently."""
    with limited(256), KlammBroker() as broker:
        assert psutil.Process(broker.pid).rlimit(psutil.RLIMIT_NOFILE) == (256, 256)
        with WireClient(broker.bootstrap_servers, timeout_s=60) as client:
            fill(client, "many", 300)
        assert psutil.Process(broker.pid).num_fds() < 160
        broker.restart(kill=True)
        with WireClient(broker.bootstrap_servers, timeout_s=60) as client:
            assert sum(1 for _ in client.read_to_end("many", 299)) == 2
        assert "Too many open files" not in broker.log_path.read_text()


def test_idle_connections_leave_descriptors_for_storage() -> None:
    with limited(1_024), KlammBroker() as broker, WireClient(broker.bootstrap_servers, timeout_s=60) as client:
        peers = idle_connections(broker.ports[0], 1_400)
        try:
            fill(client, "beside", 300)
            client.alter_topic("beside", [("flush.messages", 0, "1")])
            for partition in range(0, 300, 10):
                client.produce("beside", partition, BATCH)
        finally:
            close_all(peers)
        log = broker.log_path.read_text()
        assert "Too many open files" not in log
        assert "too many connections" in log
        wait_until_they_are_gone(broker)
        with WireClient(broker.bootstrap_servers, timeout_s=60) as again:
            assert again.end_offset("beside", 0) == 3


@pytest.mark.long
def test_unfinished_tls_handshakes_leave_descriptors_for_storage(tmp_path: Path) -> None:
    """They count as connections from the moment they are accepted, so they leave what logs and scrapes need."""
    port = free_port()
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(Certificates.create(tmp_path).issue("broker", "/CN=broker")),
    }
    with limited(512), TlsBroker(settings, port) as broker:
        with WireClient(broker.bootstrap_servers, timeout_s=60) as client:
            client.create_topic("beside", partitions=200)
            client.create_topic("before", partitions=50)
            for partition in range(50):
                client.produce("before", partition, BATCH)
        broker.restart()
        with WireClient(broker.bootstrap_servers, timeout_s=60) as client:
            client.alter_topic("beside", [("flush.messages", 0, "1")])
            peers = idle_connections(port, 900)
            try:
                for partition in range(200):
                    client.produce("beside", partition, BATCH)
                for partition in range(50):  # logs that are opened only now
                    assert client.produce("before", partition, BATCH) == 1
                assert psutil.Process(broker.pid).num_fds() < 512 - 24  # the spare ones are not in use
            finally:
                close_all(peers)
        wait_until_they_are_gone(broker)
        for at in (broker.ports[0], port):
            with socket.create_connection(("127.0.0.1", at), timeout=5):
                pass
        log = broker.log_path.read_text()
        assert not re.search("offline|Too many open files|cannot be accepted", log)
        assert "too many connections" in log
        with WireClient(broker.bootstrap_servers, timeout_s=60) as client:
            assert client.end_offset("beside", 199) == 1


class TlsBroker(KlammBroker):
    """A broker with an encrypted listener besides the plain one."""

    def __init__(self, settings: dict[str, str], port: int) -> None:
        super().__init__(settings)
        self._port = port

    def command(self) -> list[str | Path]:
        command = super().command()
        where = command.index("--listen")
        del command[where : where + 2]
        listeners = f"PLAINTEXT://127.0.0.1:{self.ports[0]},SSL://127.0.0.1:{self._port}"
        return [*command, "--set", f"listeners={listeners}"]
