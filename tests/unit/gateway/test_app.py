"""The start of the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.gateway import app as module
from klamm.gateway.app import GatewayApp
from klamm.gateway.settings import read_settings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_start_reaches_slow_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    needed_ms = 6_000
    limits_ms: list[int] = []

    async def learn(*, timeout_ms: int) -> None:
        limits_ms.append(timeout_ms)
        if timeout_ms < needed_ms:
            raise TimeoutError

    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    configs = {"upstream.bootstrap.servers": "kafka-1:9092", "listeners": "PLAINTEXT://127.0.0.1:0"}
    app = GatewayApp(read_settings({**configs, "data.dir": str(tmp_path)}))
    monkeypatch.setattr(app.upstream, "learn", learn)
    # when
    await app.start()
    # then
    await app.stop()
    assert limits_ms == [2_000, 4_000, 8_000]
