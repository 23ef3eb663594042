"""Export of pushed metrics in OpenTelemetry's protobuf format to a file or an HTTP endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import logging
import os
import threading
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from klamm.configs.definitions import CLIENT_METRICS_OTLP_ENDPOINT
from klamm.properties import SettingsError
from klamm.retries import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Size at which the file is renamed to ``<file>.1``, in place of an older one."""
_DELAY_S: Final = 0.2
"""Time in seconds in which pushes are collected before they are sent together."""
_MAX_DELAY_S: Final = 30.0
_TIMEOUT_S: Final = 10.0
_CLOSE_S: Final = 2.0
_REJECTIONS: Final = frozenset(
    {
        http.client.BAD_REQUEST,
        http.client.REQUEST_ENTITY_TOO_LARGE,
        http.client.UNPROCESSABLE_ENTITY,
    }
)
"""HTTP statuses that an endpoint would repeat for the same metrics."""


class RejectedError(OSError):
    """The target does not accept these metrics, also not later."""


class OtlpExport:
    """Queue of metrics on their way to one target. Used on the event loop only.

    Metrics that cannot be sent are sent again, after a delay that doubles. While the queue is full, the oldest
    metrics are dropped. So is a push that the target rejects: otherwise it would keep all others from being sent.

    Args:
        target: File or URL, for the log.
        send: Function that sends some metrics, called in a thread. It raises RejectedError if the target rejects any of
            them, or another OSError if it fails.
    """

    def __init__(self, target: str, send: Callable[[Sequence[bytes]], None]) -> None:
        self._target = target
        self._send = send
        self._queue: deque[bytes] = deque()
        self._size = 0
        self.task: asyncio.Task[None] | None = None
        self.dropped = 0
        """Number of pushes that were dropped."""
        self._has_rejected = False
        """Whether the target has rejected a push, which is logged once."""

    def put(self, data: bytes) -> None:
        """Queue the metrics of one push."""
        self._queue.append(data)
        self._size += len(data)
        while self._size > MAX_QUEUED_BYTES:
            self._size -= len(self._queue.popleft())
            self.dropped += 1
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Make one more attempt to send the queued metrics for two seconds, then stop."""
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
        if self._queue:
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(self._deliver(tuple(self._queue)), _CLOSE_S)

    async def _run(self) -> None:
        backoff = Backoff(2 * _DELAY_S, _MAX_DELAY_S)
        delay_s = _DELAY_S
        while self._queue:
            await asyncio.sleep(delay_s)
            try:
                await self._deliver(tuple(self._queue))
            except OSError as error:
                if not backoff.failures:
                    logger.warning("Client metrics cannot be exported to %s: %s", self._target, error)
                delay_s = backoff.next_s()
                continue
            backoff.reset()
            delay_s = _DELAY_S
        self.task = None

    async def _deliver(self, batch: Sequence[bytes]) -> None:
        """Send pushes and remove them from the queue. If the target rejects them, find those to drop by halving."""
        is_rejected = False
        try:
            await _in_thread(partial(self._send, batch))
        except RejectedError as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._deliver(batch[:middle])
                await self._deliver(batch[middle:])
                return
            if not self._has_rejected:
                logger.warning("Client metrics are dropped, because %s rejects them: %s", self._target, error)
            self._has_rejected = is_rejected = True
        for handled in batch:
            if self._queue and self._queue[0] is handled:  # otherwise it was dropped in the meantime
                self._size -= len(self._queue.popleft())
                self.dropped += is_rejected


async def _in_thread(work: Callable[[], None]) -> None:
    """Run work in a daemon thread.

    A pipe without a reader or an endpoint that drops packets may block it. In a thread of the event loop's executor, it
    would keep the process from ending.

    Raises:
        OSError: No thread can be started now.
    """
    future: Future[None] = Future()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                work()
            except BaseException as error:  # noqa: BLE001 -- raised in the caller
                future.set_exception(error)
            else:
                future.set_result(None)

    try:
        threading.Thread(target=run, name="client metrics export", daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    await asyncio.wrap_future(future)


def file_export(path: Path) -> OtlpExport:
    """Return an export that appends each push to a file: 4 bytes with its size, most significant first, and its bytes.

    This is the format ``proto`` of the file exporter of OpenTelemetry's collector. A reader cannot find the next push
    behind an incomplete one. So a failed write is taken back, and a file that does not end with a whole push, for
    example after a kill, is renamed like one that is too large. Devices and pipes are only appended to, and so is the
    file behind ``/dev/stdout``.
    """
    lock = threading.Lock()  # the last attempt may overlap with an earlier one that was cancelled
    is_whole = False

    def send(batch: Sequence[bytes]) -> None:
        nonlocal is_whole
        with lock:
            file = path.resolve()
            is_owned = (file.is_file() or not file.exists()) and not _is_descriptor(path)
            size = file.stat().st_size if is_owned and file.exists() else 0
            if size > MAX_FILE_BYTES or (size and not is_whole and not _has_whole_pushes(file)):
                file.replace(file.with_name(f"{file.name}.1"))
                size = 0
            try:
                with path.open("ab") as opened:
                    opened.write(b"".join(len(data).to_bytes(4) + data for data in batch))
            except OSError:
                is_whole = False
                if is_owned and file.exists():
                    os.truncate(file, size)
                raise
            is_whole = True

    return OtlpExport(str(path), send)


def _is_descriptor(path: Path) -> bool:
    """Return whether a path is a link to an open file, such as ``/dev/stdout``, which has other writers."""
    return path.is_symlink() and path.absolute().parts[1] in {"dev", "proc"}


def _has_whole_pushes(path: Path) -> bool:
    """Return whether a file consists of whole pushes only."""
    with path.open("rb") as file:
        position, size = 0, os.fstat(file.fileno()).st_size
        while position < size:
            file.seek(position)
            position += 4 + int.from_bytes(file.read(4))
    return position == size


def http_export(url: str) -> OtlpExport:
    """Return an export that posts metrics to an OTLP/HTTP endpoint, such as ``http://collector:4318/v1/metrics``.

    Raises:
        SettingsError: The URL has another scheme, no host or no valid port.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in {"http", "https"}:
        raise SettingsError(f"{CLIENT_METRICS_OTLP_ENDPOINT}={url}: expected http://HOST:PORT/v1/metrics, or https")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = (parts.path or "/v1/metrics") + (f"?{parts.query}" if parts.query else "")

    def send(batch: Sequence[bytes]) -> None:
        connection = kind(host, port, timeout=_TIMEOUT_S)
        try:
            # Messages with only a repeated field are joined by joining their bytes.
            connection.request("POST", path, b"".join(batch), {"Content-Type": "application/x-protobuf"})
            response = connection.getresponse()
            response.read()
        except (http.client.HTTPException, ValueError) as error:  # a host that is no name is a ValueError
            raise OSError(f"{error!r}") from error
        finally:
            connection.close()
        if not http.client.OK <= response.status < http.client.MULTIPLE_CHOICES:
            kind_of_error = RejectedError if response.status in _REJECTIONS else OSError
            raise kind_of_error(f"HTTP status {response.status}")

    return OtlpExport(url, send)
