"""Tasks in the background: an unexpected error is logged, and does not end them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from klamm.gateway.client_configs import limits
from klamm.gateway.client_configs.limits import UpstreamLimits
from klamm.gateway.relay import stalls
from klamm.gateway.settings import read_settings
from klamm.gateway.upstream.bypass import BypassCheck
from klamm.gateway.upstream.topology import Topology
from klamm.gateway.upstream.upstream import Upstream
from klamm.kafka_client.connection.transport import ConnectionSettings
from tests.support.relay_rig import shared_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

WAIT_S = 120.0


class Failing:
    """A step that fails twice, in a way that nobody expects."""

    def __init__(self) -> None:
        self.calls = 0
        self.went_on = asyncio.Event()

    def __call__(self, *_: Any) -> None:
        self.calls += 1
        if self.calls > 2:
            self.went_on.set()
            return
        raise ZeroDivisionError

    async def later(self, *_: Any) -> None:
        self()


async def learning(directory: Path, step: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="c")
    upstream = Upstream(settings, {}, Topology(directory))
    monkeypatch.setattr(upstream, "learn", step.later)
    try:
        await upstream.keep_learning(0)
    finally:
        await upstream.close()


def counting(directory: Path, step: Failing, monkeypatch: pytest.MonkeyPatch) -> Coroutine[Any, Any, None]:
    admin: Any = None
    check = BypassCheck(admin, Topology(directory), ())
    monkeypatch.setattr(check, "check", step.later)
    return check.keep_checking(0)


def closing(_: Path, step: Failing, monkeypatch: pytest.MonkeyPatch) -> Coroutine[Any, Any, None]:
    monkeypatch.setattr(stalls, "INTERVAL_S", 0)
    monkeypatch.setattr(stalls, "close_stalled", step)
    return stalls.watch_stalls(shared_objects())


async def reading(_: Path, step: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REFRESH_S", 0)
    settings = read_settings({"upstream.bootstrap.servers": "kafka:9092", "client.configs.enable": "true"})
    assert settings.client_configs is not None
    read = UpstreamLimits(settings.client_configs)
    monkeypatch.setattr(read, "refresh", _nothing)
    admin: Any = None
    await read.start(admin)
    monkeypatch.setattr(read, "refresh", step.later)
    try:
        await step.went_on.wait()
    finally:
        await read.close()


async def _nothing(_: Any) -> None:
    """Read no limits."""


@pytest.mark.parametrize("work", [learning, counting, closing, reading])
async def test_unexpected_error_does_not_end_a_task(
    work: Callable[[Path, Failing, pytest.MonkeyPatch], Coroutine[Any, Any, None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    step = Failing()
    task = asyncio.create_task(work(tmp_path, step, monkeypatch))
    async with asyncio.timeout(WAIT_S):
        await step.went_on.wait()
    task.cancel()
    errors = [record.exc_info for record in caplog.records if "trying again" in record.message]
    assert [error and error[0] for error in errors] == [ZeroDivisionError, ZeroDivisionError]
