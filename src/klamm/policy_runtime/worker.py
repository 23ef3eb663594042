"""Thread that runs one policy.

Two raw locks pass calls to the thread and results back. They take half the time of a queue and a future.

===========  =========================================================================================================
Lock         Released when
===========  =========================================================================================================
``_go``      the event loop has set ``_work`` (``begin``) or wants the thread to end (``stop``)
``_done``    the thread has set ``_outcome``
===========  =========================================================================================================

A call in order:

1. ``begin`` sets ``_work`` and releases ``_go``. If the last call took less than ``PATIENCE_S``, the event loop blocks
   on ``_done`` for that long, and a quick call needs no switch to the event loop at all.
2. Otherwise the caller waits for the future of ``rest``. ``rest`` publishes the future first and then tests
   ``_done``. The thread releases ``_done`` first and then looks for a future. So at least one side sees the other.
3. If the thread finds a future, it schedules ``_wake`` with it on the event loop. By then ``rest`` may have taken the
   result, or a later call may own the future. ``_wake`` then finds ``_done`` locked or another future, and does
   nothing.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S: Final = 0.001
"""Seconds that the event loop blocks for a policy whose last call was this quick, instead of serving others."""


_end_of_process = os._exit


class PolicyOutcome(NamedTuple):
    """Result of a call: a value or an error."""

    value: Any
    error: BaseException | None


class PolicyWorker:
    """Thread that runs one call at a time; see the module for the hand-over.

    All methods are for the event loop's thread. The result of a call must be taken before the next call begins.

    Args:
        name: Name of the thread.
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
        """Return whether the thread is running."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread. This blocks the caller."""
        self._thread.join(timeout_s)

    def begin(self, work: Callable[[], Any]) -> PolicyOutcome | None:
        """Start a call; return its result when it is quick, None when ``rest`` must be awaited."""
        patience_s = PATIENCE_S if self._seconds < PATIENCE_S else 0
        self._work = work
        self._waiter = None
        self._go.release()
        if patience_s and self._done.acquire(timeout=patience_s):
            return self._outcome
        return None

    def rest(self) -> asyncio.Future[PolicyOutcome]:
        """Return the future of the call's result. Call this once, after ``begin`` returned None."""
        waiter = self._waiter = self._loop.create_future()
        if self._done.acquire(blocking=False):
            waiter.set_result(self._outcome)
        return waiter

    def stop(self, last_work: Callable[[], Any], *, interrupt: bool = False) -> None:
        """Let the thread run one last call and end.

        Args:
            last_work: Last call. Its errors are dropped.
            interrupt: Whether to raise SystemExit inside the call in progress. That ends a loop in Python code, but not
                a blocking system call.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        self._work, self._last_work = None, last_work
        if interrupt and self._thread.ident is not None:  # before the release, so that it does not hit the last call
            import ctypes  # noqa: PLC0415  # rarely needed, so not loaded at start

            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(SystemExit))
        if self._go.locked():
            self._go.release()  # otherwise the thread has not begun its call yet, and will find that there is none

    def _run(self) -> None:
        with contextlib.suppress(BaseException):  # interrupted between two calls, or the event loop is gone
            self._run_calls()
        with contextlib.suppress(BaseException):
            if self._last_work is not None:
                self._last_work()

    def _run_calls(self) -> None:
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
                self._loop.call_soon_threadsafe(self._wake, waiter)

    def _wake(self, waiter: asyncio.Future[PolicyOutcome]) -> None:
        # The notification may be outdated. Then the future belongs to a later call, which is not done.
        if not waiter.done() and waiter is self._waiter and self._done.acquire(blocking=False):
            waiter.set_result(self._outcome)


class _PolicyThread(threading.Thread):
    """Thread of a policy. It records the process that started it, because a forked child may exit normally."""

    process_id = 0

    def start(self) -> None:
        self.process_id = os.getpid()
        super().start()


def call_here(question: Callable[[Any], object], details: object) -> PolicyOutcome:
    """Call a policy on the thread of the event loop."""
    global _called_here  # noqa: PLW0603 -- os._exit has no other way to know
    _called_here = threading.get_ident()
    try:
        return PolicyOutcome(question(details), None)
    except BaseException as error:  # noqa: BLE001 -- nothing that a policy raises may go further
        return PolicyOutcome(None, error)
    finally:
        _called_here = None


_policy_process = 0
"""Id of the process that has started threads of policies."""
_called_here: int | None = None
"""Identifier of the event loop's thread while it calls a policy. None between the calls."""


def _keep_the_process() -> None:
    """Make ``os._exit`` end a policy's call instead of the broker, as ``sys.exit`` does by itself in a thread."""
    global _policy_process  # noqa: PLW0603 -- see above
    _policy_process = os.getpid()
    os._exit = _exit_unless_policy


def _exit_unless_policy(status: int) -> NoReturn:
    thread, process = threading.current_thread(), os.getpid()
    is_called_here = thread.ident == _called_here and process == _policy_process
    if is_called_here or (isinstance(thread, _PolicyThread) and thread.process_id == process):
        raise SystemExit(status)
    _end_of_process(status)
