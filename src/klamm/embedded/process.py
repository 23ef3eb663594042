"""Start a process that ends with this one; ``klamm.embedded.lifeline`` is its other half."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class TiedProcess:
    """``main(arguments)`` of a klamm module in a process of its own, in a session of its own.

    Ctrl-C does not reach it: it is for this program, which then stops what it started in order. It sees the same
    modules as this process (``sys.path``).

    Args:
        module: the module whose ``main`` is run; what it returns is the exit code.
        arguments: what ``main`` gets.
        log: where stderr goes, and stdout unless ``pipe_stdout``.
        pipe_stdout: make stdout a pipe, ``process.stdout``.
        remove: a directory that the process removes when this one has vanished; None means nothing.
        is_tied: False lets the process live on when this one has vanished.
        environment: variables on top of this process's own.
        directory: its working directory; None means this one's.
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
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        watched: int | None = None
        self._lifeline: int | None = None
        if is_tied:
            watched, self._lifeline = os.pipe()
        words = ["" if watched is None else str(watched), str(remove or ""), module, *arguments]
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own modules
                [sys.executable, "-P", "-m", "klamm.embedded.lifeline", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe_stdout else log,
                stderr=log,
                pass_fds=() if watched is None else (watched,),
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
        """End the process and return its exit code; does nothing more the second time.

        Args:
            timeout_s: how long it may take to stop after SIGTERM; then, or at once when this is 0, it is killed.
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
