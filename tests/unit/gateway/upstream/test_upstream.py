"""Connections to brokers: one that does not respond delays its own connections only."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

from klamm.gateway.upstream import upstream as module
from klamm.gateway.upstream.topology import Topology
from klamm.gateway.upstream.upstream import Upstream
from klamm.kafka_client.connection.transport import ConnectionSettings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SILENT, PROMPT = 1, 2


class Opened:
    """Connection that remembers whether it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


async def test_broker_that_does_not_respond_delays_its_own_connections_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, late, prompt = threading.Event(), Opened(), Opened()

    def connect(_host: str, port: int, _settings: ConnectionSettings) -> Any:
        if port == SILENT:
            assert release.wait(60)
            return late
        return prompt

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "_WAIT_S", 0.2)
    topology = Topology(tmp_path)
    for port in (SILENT, PROMPT):
        topology.learn(port, "127.0.0.1", port)
    upstream = Upstream(ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="c"), {}, topology)
    waiting = [asyncio.create_task(upstream.connect(SILENT)) for _ in range(20)]
    await asyncio.sleep(0)
    assert cast("Any", await upstream.connect(PROMPT)) == (prompt, None)
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert {str(error) for error in errors} == {"broker 1 at 127.0.0.1:1: no connection within 0.2 s"}
    assert not late.closed.is_set()
    release.set()
    assert await asyncio.to_thread(late.closed.wait, 60)
    await upstream.close()


async def test_topology_is_requested_again_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = Upstream(ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="c"), {}, Topology(tmp_path))
    repeated = asyncio.Event()

    async def learn() -> None:
        if caplog.records:
            repeated.set()
        raise ZeroDivisionError

    monkeypatch.setattr(upstream, "learn", learn)
    learning = asyncio.create_task(upstream.keep_learning(0))
    async with asyncio.timeout(20):
        await repeated.wait()
    learning.cancel()
    assert "The brokers of the upstream cannot be read" in caplog.text
    await upstream.close()
