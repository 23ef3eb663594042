"""Worker processes that end, or that the machine cannot start."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from klamm.gateway.processes import control, worker_pool
from klamm.gateway.processes.worker_pool import WorkerPool
from klamm.monitoring.exposition import Page
from klamm.properties import SettingsError


class EndedProcess:
    """Process that sends a message to its parent and ends at once."""

    def __init__(self, descriptor: int, message: control.Message) -> None:
        with socket.socket(fileno=descriptor) as end:
            control.send(end, message)
            end.detach()

    async def wait(self) -> int:
        return 1


async def test_worker_is_started_later_if_process_limit_is_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given: a process that ends, then no process, then another that ends
    ready = {"ready": True, "why_not_ready": None}
    outcomes: list[control.Message | OSError] = [ready, OSError(11, "out of processes"), ready]
    pool = WorkerPool(1, [], 1.0)
    is_over = asyncio.Event()

    async def start(*_command: object, pass_fds: list[int]) -> Any:
        outcome = outcomes.pop(0)
        if not outcomes:
            pool.is_stopping = True
            is_over.set()
        if isinstance(outcome, OSError):
            raise outcome
        return EndedProcess(pass_fds[0], outcome)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(worker_pool, "_RESTART_S", 0)

    # when
    keeping = asyncio.create_task(pool.keep(pool.workers[0]))
    await is_over.wait()
    await keeping
    # then
    assert not outcomes
    assert "Worker process 0 cannot be started: [Errno 11] out of processes; it is started again" in caplog.text


async def test_gateway_does_not_start_if_process_limit_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start(*_command: object, **_more: object) -> Any:
        raise OSError(11, "out of processes")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)

    pool = WorkerPool(2, [], 1.0)
    with pytest.raises(SettingsError, match=r"a worker process cannot be started: .*out of processes"):
        await pool.start()
    await pool.stop()


class HangingProcess:
    """Process that hangs in its start."""

    def __init__(self) -> None:
        self._killed = asyncio.Event()

    def kill(self) -> None:
        self._killed.set()

    async def wait(self) -> int:
        await self._killed.wait()
        return -9


async def test_worker_that_hangs_in_its_start_is_killed_at_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    processes: asyncio.Queue[HangingProcess] = asyncio.Queue()

    async def start(*_command: object, **_more: object) -> Any:
        process = HangingProcess()
        processes.put_nowait(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    pool = WorkerPool(1, [], grace_s=600.0)
    starting = asyncio.create_task(pool.start())
    process = await processes.get()

    starting.cancel()
    async with asyncio.timeout(30):
        await pool.stop()

    assert await process.wait() == -9


async def test_counters_of_ended_processes_stay_in_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    # given: a process that ends after it has reported its metrics, three times
    page = Page()
    page.family("requests_total", "counter", "Requests.", [({"client_id": "a\n# HELP b"}, 5), ({"client_id": ""}, 2.5)])
    page.family("connections", "gauge", "Open connections.", [({}, 7)])
    part = {"part": ["page", page.text()], "is_first": True, "is_last": True}
    pool = WorkerPool(1, [], 1.0)
    (worker,) = pool.workers

    async def start(*_command: object, pass_fds: list[int]) -> Any:
        return EndedProcess(pass_fds[0], part)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)

    # when
    for _ in range(3):
        await worker.run()
    # then
    expected = Page()
    expected.family(
        "requests_total", "counter", "Requests.", [({"client_id": "a\n# HELP b"}, 15), ({"client_id": ""}, 7.5)]
    )
    assert pool.pages == [expected.text()]


async def test_unread_reason_of_an_ended_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(*_command: object, pass_fds: list[int]) -> Any:
        return EndedProcess(pass_fds[0], {"failed": "no such policy"})

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)

    pool = WorkerPool(1, [], 1.0)
    with pytest.raises(SettingsError, match="no such policy"):
        await pool.start()
    await pool.stop()
