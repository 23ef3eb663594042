"""Broker in a thread of this process, with a measurement of how long each callback holds its event loop.

The measure is the processor time that the loop's thread spends on one callback, so other processes and threads do not
lengthen it. Garbage collections are left out, because they mostly visit objects of the test.
"""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.broker.app import BrokerApp
from klamm.broker.cluster import AdvertisedBroker
from klamm.broker.main import GarbageSettings
from klamm.broker.settings import parse_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Hold(NamedTuple):
    """One callback of the event loop."""

    seconds: float
    """Processor time in seconds."""
    what: str


class HeldLoop:
    """Measurements of the loop. Read them after the broker has responded."""

    def __init__(self) -> None:
        self.address = ""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._holds: list[Hold] = []

    def begin(self) -> None:
        """Drop earlier measurements."""
        self._holds = []

    def longest(self) -> Hold:
        """Return the longest callback since ``begin``, after the running callback has ended."""
        if self.loop is not None:
            is_over = threading.Event()
            self.loop.call_soon_threadsafe(is_over.set)
            is_over.wait(120)
        return max(self._holds, default=Hold(0.0, "nothing"))

    def longest_s_of(self, work: Callable[[], object], *, limit_s: float) -> float:
        """Return the longest callback of some work in seconds, of the best of up to three tries.

        Where others share the core, even the processor time of equal work varies. A callback that is too long fails
        each try.

        Args:
            work: Function to try.
            limit_s: Time that needs no other try.
        """
        best_s = math.inf
        for _ in range(_TRIES):
            self.begin()
            work()
            best_s = min(best_s, self.longest().seconds)
            if best_s < limit_s:
                break
        return best_s

    def count(self, seconds: float) -> None:
        """Count one callback."""
        self._holds.append(Hold(seconds, ""))

    def note(self, seconds: float, handle: asyncio.Handle) -> None:
        """Record a callback that is long enough to be named in a report."""
        self._holds.append(Hold(seconds, repr(handle)))


_WORTH_A_NAME_S = 0.004
_TRIES = 3


@contextmanager
def a_held_broker(data_dir: Path, *arguments: str) -> Iterator[HeldLoop]:
    """Run a broker on an asyncio event loop whose callbacks are measured; yield the measurements."""
    held, stop, ready = HeldLoop(), asyncio.Event(), threading.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        held.loop = asyncio.get_running_loop()
        settings = parse_arguments(["--listen", "127.0.0.1:0", "--data-dir", str(data_dir), *arguments])
        name = settings.listeners[0].name
        sock = socket.create_server(("127.0.0.1", 0))
        host, port = sock.getsockname()[:2]
        app = await BrokerApp.start(
            settings, {name: (AdvertisedBroker(node_id=settings.node_ids[0], host=host, port=port),)}
        )
        app.listen(name, {settings.node_ids[0]: sock})
        held.address = f"{host}:{port}"
        ready.set()
        await stop.wait()
        await app.stop()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 -- told to the thread that waits
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="held-loop")
    with _timed(held, thread), _without_pauses_for_garbage():
        thread.start()
        ready.wait(120)
        try:
            if not failures:
                yield held
        finally:
            if held.loop is not None and thread.is_alive():
                held.loop.call_soon_threadsafe(stop.set)
            thread.join(20)
    if failures:
        raise failures[0]


@contextmanager
def callbacks_of_this_thread() -> Iterator[HeldLoop]:
    """Measure the callbacks of event loops that run in the thread of the test."""
    held = HeldLoop()
    with _timed(held, threading.current_thread()), _without_pauses_for_garbage():
        yield held


@contextmanager
def _timed(held: HeldLoop, thread: threading.Thread) -> Iterator[None]:
    handle_class: Any = asyncio.Handle
    run = handle_class._run
    collecting_s = began = 0.0

    def on_collection(phase: str, _: Any) -> None:
        nonlocal collecting_s, began
        if threading.get_ident() == thread.ident:
            if phase == "start":
                began = time.thread_time()
            else:
                collecting_s += time.thread_time() - began

    def timed(handle: asyncio.Handle) -> None:
        if threading.get_ident() != thread.ident:
            run(handle)
            return
        before = time.thread_time() - collecting_s
        try:
            run(handle)
        finally:
            seconds = time.thread_time() - collecting_s - before
            if seconds > _WORTH_A_NAME_S:
                held.note(seconds, handle)
            else:
                held.count(seconds)

    handle_class._run = timed
    gc.callbacks.append(on_collection)
    try:
        yield
    finally:
        handle_class._run = run
        gc.callbacks.remove(on_collection)


@contextmanager
def _without_pauses_for_garbage() -> Iterator[None]:
    """Collect garbage at the same times as the broker does."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    GarbageSettings().apply()
    try:
        yield
    finally:
        gc.callbacks[:] = [callback for callback in gc.callbacks if callback in callbacks]
        gc.set_threshold(*thresholds)
