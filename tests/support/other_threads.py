"""A thread of another library beside the tests: ``pytest -p tests.support.other_threads``.

Threads of kafka-python, librdkafka and PySpark outlive the test that started them. A test that replaces a function for
the whole process, or takes all output and all log records for its own, fails when such a thread is at work. With this
plugin one always is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest

_PAUSE_S: Final = 0.001

_logger = logging.getLogger("another.library")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin when all tests are collected."""
    if session.items:
        threading.Thread(target=_work, name="another-library", daemon=True).start()


def _work() -> None:
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as listener:
        while True:
            time.sleep(_PAUSE_S)
            _logger.error("a record of another library")
            os.write(2, b"a line of another library\n")
            loop.run_until_complete(asyncio.sleep(0))
            with contextlib.suppress(OSError):  # of a test that uses up all descriptors
                _use_the_system(file, listener)


def _use_the_system(file: IO[bytes], listener: socket.socket) -> None:
    file.write(b"1")
    os.fsync(file.fileno())
    host, port = listener.getsockname()
    socket.getaddrinfo(host, port)
    with socket.create_connection((host, port)):
        listener.accept()[0].close()
    short = threading.Thread(target=random.random)
    short.start()
    short.join()
    assert time.monotonic()
    assert time.time() > 1
    assert Path("/proc/self").exists()
