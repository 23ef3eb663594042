"""The thread of a policy, which may start late."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from klamm.policy_runtime.worker import PolicyWorker
from tests.support.by_thread import replace_for_this_thread

if TYPE_CHECKING:
    import pytest


async def test_worker_stopped_before_its_thread_starts_skips_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    late: list[threading.Thread] = []
    start = threading.Thread.start

    def keep(thread: threading.Thread) -> None:
        late.append(thread)

    with monkeypatch.context() as patched:
        replace_for_this_thread(patched, threading.Thread, "start", keep)
        worker = PolicyWorker("klamm-policy-Late")
    assert worker.begin(lambda: ran.append("call")) is None
    # when
    worker.stop(lambda: ran.append("last"))
    start(late[0])
    # then
    await asyncio.to_thread(worker.join, 10)
    assert not worker.is_alive
    assert ran == ["last"]


async def test_interrupted_idle_worker_runs_last_call() -> None:
    ran: list[str] = []
    worker = PolicyWorker("klamm-policy-Idle")
    outcome = worker.begin(lambda: ran.append("call"))
    if outcome is None:
        await worker.rest()
    # when
    worker.stop(lambda: ran.append("last"), interrupt=True)
    # then
    await asyncio.to_thread(worker.join, 10)
    assert ran == ["call", "last"]
