"""Child processes that end with their parent, and ports that stay free across a restart."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import psutil  # type: ignore[import-untyped]

from klamm.embedded.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CHILD_TIMEOUT_S: Final = 120.0
"""Time in seconds that a child process may take to start or to end, however busy the machine is."""
_PR_SET_PDEATHSIG = 1
# Below Linux's ephemeral range (32768 and up): no outgoing connection takes the port while its broker is down. Below
# the range from which klamm's own brokers and gateways take free ports (20000 and up), for the same reason.
_PORTS = range(10_000, 20_000)
_random = random.SystemRandom()  # each test seeds the module's own generator: parallel runs would collide
# A port is free between its choice and the start of its broker, and while the broker is restarted. So each port is a
# locked byte of this file until its process ends: no worker of pytest-xdist takes it, nor another run in another clone.
_locked = os.open(Path(tempfile.gettempdir()) / f"klamm-test-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)
_handed_out: set[int] = set()
_handed_out_lock = threading.Lock()


def free_port() -> int:
    """Return a port on 127.0.0.1 that is free and that no process of a test has been given before."""
    with _handed_out_lock:
        for _ in range(1_000):
            port = _random.choice(_PORTS)
            if port not in _handed_out and _lock(port) and _is_free(port):
                _handed_out.add(port)
                return port
    raise RuntimeError(f"No free port in {_PORTS}")


def _lock(port: int) -> bool:
    try:
        fcntl.lockf(_locked, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False  # by another process
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def start_process(
    command: Sequence[str | Path],
    *,
    log: Path | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills when the calling *thread* ends (Linux), so call it from the main thread.

    Args:
        command: Program and arguments.
        log: File that stderr (and stdout, unless ``stdout`` says otherwise) is appended to; None: discarded.
        stdin: As in ``subprocess``.
        stdout: As in ``subprocess``; None: to ``log``.
        env: Whole environment; None: inherited.
        cwd: Working directory; None: inherited.
        new_session: Whether it leads a session and a process group of its own.
    """
    sink: IO[bytes] | int = log.open("ab") if log is not None else subprocess.DEVNULL
    try:
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=stdin,
            stdout=sink if stdout is None else stdout,
            stderr=sink,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            start_new_session=new_session,
            preexec_fn=die_with_this_thread(),  # noqa: PLW1509 - two system calls
        )
    finally:
        if not isinstance(sink, int):
            sink.close()


def die_with_this_thread() -> Callable[[], None] | None:
    """Return what a child runs before its program, so that it is killed with the calling thread; None: not on Linux."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True)

    def hook() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the request was in place
            os._exit(1)

    return hook


def stop_process(process: subprocess.Popen[bytes], *, grace_s: float = 20.0) -> int:
    """Send SIGTERM, and SIGKILL after ``grace_s`` seconds; return the exit status."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    return process.wait()


class LoggedProcess:
    """A server that tests stop, kill and start again, with a log that all its processes append to.

    Args:
        name: Name of the server, for messages.
        log_path: File of its output.
    """

    def __init__(self, name: str, log_path: Path) -> None:
        self._name = name
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str | Path]:
        """Return the command line that starts it."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None, f"{self._name} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the process without waiting for it."""
        assert not self.is_running, f"{self._name} is already running"
        self._process = start_process(self.command(), log=self.log_path)

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        assert self._process is not None, f"{self._name} is not running"
        self._process.kill()
        self._process.wait()

    def check_alive(self) -> None:
        """Raise a RuntimeError that ends with the log if the process has ended."""
        if not self.is_running:
            raise RuntimeError(f"{self._name} ended while starting:\n{self.log_tail()}")

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


def allow_slow_starts() -> None:
    """Let the brokers and gateways that tests embed take as long to start as other child processes."""
    wait: Any = ServerProcess.wait_until_ready

    def wait_longer(process: ServerProcess, timeout_s: float) -> Any:
        __tracebackhide__ = True
        return wait(process, max(timeout_s, CHILD_TIMEOUT_S))

    ServerProcess.wait_until_ready = wait_longer  # type: ignore[method-assign,assignment]


def has_ended(pid: int) -> bool:
    """Return whether a process has ended. Its parent may still have to collect it."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_until(
    condition: Callable[[], bool],
    *,
    timeout_s: float,
    what: str,
    interval_s: float = 0.02,
    alive: Callable[[], None] = lambda: None,
) -> None:
    """Poll another process's state (the one place where polling is right) until ``condition`` holds.

    Args:
        condition: Called until it returns True.
        timeout_s: Seconds before giving up.
        what: Names what was waited for in the error.
        interval_s: Seconds between two calls.
        alive: Called between; raises when waiting has become pointless.

    Raises:
        TimeoutError: ``condition`` did not hold in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited {timeout_s:.0f} s in vain for {what}")
        time.sleep(interval_s)
