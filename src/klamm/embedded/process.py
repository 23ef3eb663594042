"""Start of a child process that ends with this one; ``klamm.embedded.lifeline`` is the child's side."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

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

        Args:
            timeout_s: Time in seconds that it may take to stop after SIGTERM before it is killed. 0 kills it
                immediately.
        """
        if self.process.poll() is None:
            if timeout_s > 0:
                self.process.terminate()
            else:
                self.process.kill()
            try:
                self.process.wait(timeout_s or None)
            except subprocess.TimeoutExpired:
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
