"""Child process of a server command, ``klamm broker`` or ``klamm gateway``: its ready line, its log and its end."""

from __future__ import annotations

import fcntl
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__tracebackhide__ = True
_STANDARD: Final = 2
"""Highest descriptor of the standard streams."""


def above_standard(fd: int) -> int:
    """Return a descriptor that a child process can inherit beside its standard streams.

    A program whose standard streams are closed, such as a daemon, gets their numbers for the next files that it opens.
    Such a descriptor is duplicated and closed.
    """
    if fd > _STANDARD:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _STANDARD + 1)
    finally:
        os.close(fd)


class TiedProcess:
    """``main(arguments)`` of a klamm module, running in its own process and its own session.

    Ctrl-C does not reach the process: only this program receives it, and then stops its child processes in order. The
    process uses the same ``sys.path`` as this one.

    Args:
        module: Module whose ``main`` is run. The return value is the exit code.
        arguments: Arguments of ``main``.
        log: File for stderr, and for stdout unless ``pipe_stdout``.
        pipe_stdout: Whether stdout is a pipe, ``process.stdout``.
        remove: Directory that the process removes when this one has vanished. None means nothing.
        is_tied: Whether the process ends when this one has vanished.
        pass_fds: File descriptors that the process inherits.
        environment: Environment variables in addition to this process's own.
        directory: Working directory. None means that of this process.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        log: IO[bytes],
        pipe_stdout: bool = False,
        remove: Path | None = None,
        is_tied: bool = True,
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        watched: int | None = None
        self._lifeline: int | None = None
        if is_tied:
            watched, self._lifeline = os.pipe()
            watched = above_standard(watched)
        words = ["" if watched is None else str(watched), str(remove or ""), module, *arguments]
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own modules
                [sys.executable, "-P", "-m", "klamm.embedded.lifeline", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe_stdout else log,
                stderr=log,
                pass_fds=(*pass_fds, *(() if watched is None else (watched,))),
                env={**os.environ, "PYTHONPATH": path, **(environment or {})},
                cwd=directory,
                start_new_session=True,
            )
        except BaseException:
            self._cut()
            raise
        finally:
            if watched is not None:
                os.close(watched)

    def end(self, timeout_s: float) -> int:
        """End the process and return its exit code. Further calls do nothing more.

        If the wait is interrupted, such as by Ctrl-C, the process is killed.

        Args:
            timeout_s: Time in seconds that it may take to stop after SIGTERM before it is killed. 0 kills it
                immediately.
        """
        try:
            if timeout_s > 0 and self.process.poll() is None:
                self.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(timeout_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self._cut()
        return self.process.returncode

    def _cut(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


_LOG_TAIL_BYTES: Final = 16 * 1024


class BrokerStartError(RuntimeError):
    """The process of a broker or a gateway did not start. The message ends with its output on stderr."""


class ServerProcess:
    """One process of a server command, with its log.

    Args:
        module: Module whose ``main`` is run.
        arguments: Arguments of ``main``.
        name: Name of the command, for the ready line ``klamm NAME ready on ADDRESSES (`` and for messages.
        remove: Directory that the process removes when this one has vanished.
        is_tied: Whether the process ends when this one has vanished.
        directory: Working directory. None means that of this process.
        pass_fds: File descriptors that the process inherits.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        name: str,
        remove: Path | None,
        is_tied: bool,
        directory: Path | None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._name = name
        self._ready = re.compile(rb"klamm %s ready on (\S+) \(" % name.encode())
        self._log: IO[bytes] = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed in end()
        self._last_words = ""
        self.is_ready = False
        try:
            self._tied = TiedProcess(
                module,
                arguments,
                log=self._log,
                pipe_stdout=True,
                remove=remove,
                is_tied=is_tied,
                directory=directory,
                pass_fds=pass_fds,
            )
        except BaseException:
            self._log.close()
            raise
        self.process = self._tied.process

    def wait_until_ready(self, timeout_s: float) -> tuple[str, ...]:
        """Wait for the ready line and return its addresses.

        Raises:
            BrokerStartError: The process ended, or printed no ready line in time.
        """
        deadline = time.monotonic() + timeout_s
        said = bytearray()
        while (match := self._ready.search(said)) is None:
            chunk = self._read_stdout(deadline - time.monotonic())
            if chunk is None:
                raise BrokerStartError(
                    f"The {self._name} was not ready within {timeout_s:g} s. Its output:\n{self.log_text() or '(none)'}"
                )
            if not chunk:
                code = self.process.wait()
                raise BrokerStartError(
                    f"The {self._name} ended with exit code {code} before it was ready. Its output:\n"
                    f"{self.log_text() or '(none)'}"
                )
            said += chunk
        self.is_ready = True
        return tuple(match.group(1).decode().split(","))

    def _read_stdout(self, timeout_s: float) -> bytes | None:
        """Return bytes from stdout, b"" at the end of the stream, or None if nothing arrived in time."""
        if self.process.stdout is None or timeout_s <= 0:
            return None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return None
        return os.read(self.process.stdout.fileno(), 4096)

    def log_text(self) -> str:
        """Return the end of the log. Reads by position, because the process appends through the same open file."""
        if self._log.closed:
            return self._last_words
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - _LOG_TAIL_BYTES)
        return os.pread(self._log.fileno(), size - start, start).decode(errors="replace").strip()

    def end(self, timeout_s: float) -> None:
        """End the process like ``TiedProcess.end``, and keep only the end of its log."""
        try:
            self._tied.end(timeout_s)
        finally:
            self._last_words = self.log_text()
            self._log.close()
