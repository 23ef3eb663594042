"""Processes that stand still for seconds, as on an overloaded host: ``pytest -p tests.support.paused_processes``.

A virtual machine that is moved, or a process that the kernel has swapped out, does nothing for a while, and whatever
waits for it waits longer. With this plugin, that happens to the brokers, gateways, mirrors, Kafka, Spark and commands
that the tests have started. A test that compares a duration with a short limit fails then, as does one that takes a
late answer for none.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

import psutil  # type: ignore[import-untyped]

if TYPE_CHECKING:
    import pytest

_PAUSES_S: Final = (0.2, 1.0, 3.0, 6.0, 10.0)
"""Longest pauses. Clients and sessions have limits of 30 s and more."""
_AT_ONCE: Final = (1, 2, 3, 5)
_RUNS_S: Final = 5.0

_random = random.Random()
_kill = os.kill
_lock = threading.Lock()
_stopped_by_tests = set[int]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin when all tests are collected. Each of pytest's workers pauses the processes below it."""
    if session.items:
        os.kill = _kill_for_test
        threading.Thread(target=_work, name="pauses", daemon=True).start()


def _kill_for_test(pid: int, number: int, /) -> None:
    with _lock:
        if number == signal.SIGSTOP:
            _stopped_by_tests.add(pid)
        elif number in {signal.SIGCONT, signal.SIGKILL}:
            _stopped_by_tests.discard(pid)
        _kill(pid, number)


def _work() -> None:
    own = psutil.Process()
    while True:
        processes = own.children(recursive=True)
        chosen = _random.sample(processes, min(len(processes), _random.choice(_AT_ONCE)))
        _send(signal.SIGSTOP, chosen)
        time.sleep(_random.uniform(0, _random.choice(_PAUSES_S)))
        _send(signal.SIGCONT, chosen)
        time.sleep(_random.uniform(0, _RUNS_S))


def _send(number: signal.Signals, processes: list[psutil.Process]) -> None:
    for process in processes:
        with _lock:
            if process.pid not in _stopped_by_tests and process.is_running():
                _kill(process.pid, number)
