"""The thread on which one policy lives."""

from __future__ import annotations

import _thread
import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S: Final = 0.001
"""How long the event loop itself waits for a policy that was quick the last time, instead of serving others."""


_end_of_process = os._exit


class PolicyOutcome(NamedTuple):
    """What a piece of work led to."""

    value: Any
    error: BaseException | None


class PolicyWorker:
    """Runs one piece of work at a time on a thread of its own.

    Two locks pass the work to and fro, since that costs half of what queues and futures do. All methods are for the
    event loop's thread; nothing may be begun before the outcome of the last piece was taken.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._go, self._done = _thread.allocate_lock(), _thread.allocate_lock()
        self._go.acquire()
        self._done.acquire()
        self._work: Callable[[], Any] | None = None
        self._last_work: Callable[[], Any] | None = None
        self._outcome = PolicyOutcome(None, None)
        self._waiter: asyncio.Future[PolicyOutcome] | None = None
        self._seconds = 0.0
        self._is_stopping = False
        self._thread = _PolicyThread(target=self._run, name=name, daemon=True)
        _keep_the_process()
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread; blocks."""
        self._thread.join(timeout_s)

    def begin(self, work: Callable[[], Any]) -> PolicyOutcome | None:
        """Hand work over; returns its outcome when it is quick, and None when there is one to wait for."""
        patience_s = PATIENCE_S if self._seconds < PATIENCE_S else 0
        self._work = work
        self._waiter = None
        self._go.release()
        if patience_s and self._done.acquire(timeout=patience_s):
            return self._outcome
        return None

    def rest(self) -> asyncio.Future[PolicyOutcome]:
        """Return what is done when the work is; to be called once, after ``begin`` returned None."""
        waiter = self._waiter = self._loop.create_future()
        if self._done.acquire(blocking=False):
            waiter.set_result(self._outcome)
        return waiter

    def stop(self, last_work: Callable[[], Any], *, interrupt: bool = False) -> None:
        """Let the thread do one thing more, and end.

        Args:
            last_work: What it does last; whatever that raises is lost.
            interrupt: Raise SystemExit inside what runs now: it ends a loop of Python, not a wait of the system.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        self._work, self._last_work = None, last_work
        self._go.release()
        if interrupt and self._thread.ident is not None:
            import ctypes  # noqa: PLC0415  # who never needs it does not wait for it

            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(SystemExit))

    def _run(self) -> None:
        try:
            while True:
                self._go.acquire()
                work = self._work
                if work is None:
                    break
                started = time.perf_counter()
                try:
                    outcome = PolicyOutcome(work(), None)
                except BaseException as error:  # noqa: BLE001 -- nothing that a policy raises may go further
                    outcome = PolicyOutcome(None, error)
                self._seconds = time.perf_counter() - started
                self._outcome = outcome
                del work, outcome
                self._done.release()
                waiter = self._waiter
                if waiter is not None:
                    self._loop.call_soon_threadsafe(self._tell, waiter)
            if self._last_work is not None:
                self._last_work()
        except BaseException:  # noqa: BLE001, S110 -- interrupted, or the event loop is gone
            pass

    def _tell(self, waiter: asyncio.Future[PolicyOutcome]) -> None:
        # The news may be old: then the waiter waits for something else, which is not done.
        if not waiter.done() and waiter is self._waiter and self._done.acquire(blocking=False):
            waiter.set_result(self._outcome)


class _PolicyThread(threading.Thread):
    """A thread on which a policy lives, in the process that made it: one that was forked may end."""

    process_id = 0

    def start(self) -> None:
        self.process_id = os.getpid()
        super().start()


def _keep_the_process() -> None:
    """Let ``os._exit`` end a policy's call and not the broker, as ``sys.exit`` does by itself on a thread."""
    os._exit = _exit_unless_policy


def _exit_unless_policy(status: int) -> NoReturn:
    thread = threading.current_thread()
    if isinstance(thread, _PolicyThread) and thread.process_id == os.getpid():
        raise SystemExit(status)
    _end_of_process(status)
