"""What tests leave to others: log files are closed after each test, the rest fails the last test of a file.

A test that lets a log crash abandons its manager with all open files. The end of a process would close them; the
descriptors are plain numbers, so the garbage collector does not. One file of tests would leave 2,000 of them.

A client of kafka-python that is not closed tries to reach its broker until the worker ends. Its log lines appear among
those of later tests. One of librdkafka does so until its object is freed, and writes to the descriptor of stderr. The
same holds for brokers, gateways and commands that still run, and for files in the repository.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.storage.log.files import FilePool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_POOLS: Final[list[FilePool]] = []
"""Pools that were created since the files were closed last. The collector must not take them before that."""
_CLIENT_THREAD: Final = re.compile("kafka-io-|.*-network-thread$")
"""Names of the threads of kafka-python's clients, and of its producers."""
_LIBRDKAFKA_THREAD: Final = "rdk:main"
"""Name of the thread that each client of librdkafka has."""
_MAX_NEW_DESCRIPTORS: Final = 64
"""A fixture of the whole run, such as a Spark session, opens up to 40."""
_END_S: Final = 30.0
_ROOT: Final = Path(__file__).resolve().parents[2]
_OF_TOOLS: Final = frozenset({".hypothesis", ".mypy_cache", "build"})
"""Directories that hypothesis and checks beside the tests create at any moment."""


def install() -> None:
    """Register all pools of log files that are created in this process from now on."""
    FilePool.__init__ = _registered(FilePool.__init__)  # type: ignore[method-assign]


def _registered(create: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(create)
    def registered(pool: FilePool, *args: Any, **options: Any) -> None:
        create(pool, *args, **options)
        _POOLS.append(pool)

    return registered


def close_log_files() -> None:
    """Close the files of the pools. A pool that is still used opens them again."""
    while _POOLS:
        _POOLS.pop().close()


def nothing_left() -> Iterator[None]:
    """Fail at the end of a file of tests if it leaves clients, processes, files, or many open descriptors."""
    threads, descriptors = set(threading.enumerate()), _open_descriptors()
    processes, files, native = _processes(), set(os.listdir(_ROOT)), _librdkafka_clients()
    yield
    new = [thread for thread in threading.enumerate() if thread not in threads]
    clients = [thread for thread in new if _CLIENT_THREAD.match(thread.name)]
    for thread in clients:
        thread.join(_END_S)
    running = [thread.name for thread in clients if thread.is_alive()]
    assert not running, f"Clients were not closed: {running}"
    if _librdkafka_clients() > native:  # those in reference cycles are freed with them
        gc.collect()
        assert _librdkafka_clients() <= native, "A client of librdkafka was not freed"
    close_log_files()
    opened = _open_descriptors() - descriptors
    if opened > _MAX_NEW_DESCRIPTORS:  # those of reference cycles are closed with them
        gc.collect()
        opened = _open_descriptors() - descriptors
    assert opened <= _MAX_NEW_DESCRIPTORS, f"{opened} descriptors were not closed"
    left = [command for pid, command in _processes().items() if pid not in processes]
    assert not left, f"Processes still run: {left}"
    new_files = set(os.listdir(_ROOT)) - files - _OF_TOOLS
    assert not new_files, f"Files were left in {_ROOT}: {new_files}"


def _processes() -> dict[int, str]:
    """Return the commands of child processes that run Python.

    Kafka, Spark, a browser and an embedded broker (``klamm_session_broker``) may serve the whole run.
    """
    commands = {}
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a process has ended
            for pid in children.read_text().split():
                program, *words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
                if "python" in program and "klamm.embedded.lifeline" not in words:
                    commands[int(pid)] = " ".join([program, *words])
    return commands


def _librdkafka_clients() -> int:
    names = []
    for comm in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended
            names.append(comm.read_text().strip())
    return names.count(_LIBRDKAFKA_THREAD)


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
