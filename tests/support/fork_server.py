"""Start of klamm's servers by a fork of a process that has imported them, which takes a fifth of the CPU time.

A full run of the tests starts hundreds of brokers, and each spends 0.25 s on imports. Where ``allow`` permits it,
``subprocess.Popen`` in this process has a ``klamm broker``, an embedded broker and an embedded gateway forked by one
helper process. The result is an ordinary child of this process: its id, its signals, its exit status, its descriptors,
its environment and its session are those that ``Popen`` would have given it. Only its command line is the helper's.

The helper forks twice. As this process adopts orphans at that moment, it becomes the parent of the second child.

A server that needs something of its own at the start of Python, as another locale or a library to preload, is started
as usual, and so is everything where the system is not Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.fork_child import LIFELINE, REQUEST_BYTES, SCRIPT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PR_SET_CHILD_SUBREAPER: Final = 36
_PATIENCE_S: Final = 60.0
_AT_START: Final = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_", "OPENSSL_", "SSL_")
"""Beginnings of the names of environment variables that count when Python starts."""
_LIMITS: Final = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
_PIPES: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_EXECUTE: Final[Any] = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_PARAMETERS: Final = inspect.signature(_EXECUTE)


class ForkServer:
    """Helper process that forks servers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = _start_state(os.environ)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = Path(__file__).with_name("fork_child.py")
        self._socket.settimeout(_PATIENCE_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(child), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def close(self) -> None:
        """End the helper. What it has forked lives on."""
        self._socket.close()
        self._process.wait()

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Return whether a process with this environment would begin as the helper did."""
        return _start_state(environment) == self._state and not _has_own_start(environment)

    def fork(self, request: Mapping[str, object], fds: Sequence[int]) -> int:
        """Fork a server and return its process id. It is a child of this process."""
        text = json.dumps({**request, "parent": os.getpid()}).encode()
        assert len(text) < REQUEST_BYTES
        with self._lock, self._adopting_orphans():
            socket.send_fds(self._socket, [text], fds)
            answer = self._socket.recv(100)
        if not answer:
            raise RuntimeError("the fork server of the tests has ended")
        return int(answer)

    @contextlib.contextmanager
    def _adopting_orphans(self) -> Iterator[None]:
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            yield
        finally:
            self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


_server: ForkServer | None = None
_is_allowed = False


def allow(*, is_allowed: bool) -> None:
    """Permit forks of servers to what follows, or forbid them."""
    global _server, _is_allowed  # noqa: PLW0603 - Popen takes no state of its own
    _is_allowed = is_allowed and sys.platform == "linux"
    if _is_allowed and _server is None:
        _server = ForkServer()


def close() -> None:
    """End the helper process, if there is one, and forbid forks."""
    global _server, _is_allowed
    server, _server, _is_allowed = _server, None, False
    if server is not None:
        server.close()


def install() -> None:
    """Let ``subprocess.Popen`` ask the fork server. Call this once per process."""
    subprocess.Popen._execute_child = _execute  # type: ignore[attr-defined]


def _execute(popen: subprocess.Popen[bytes], *args: object) -> None:
    """Fork the process, or execute the program as usual."""
    asked = _PARAMETERS.bind(popen, *args).arguments
    words, environment = _as_words(asked["args"]), asked["env"] or os.environ
    module = _module(words)
    if not _is_allowed or _server is None or module is None or not _server.suits(environment):
        _EXECUTE(popen, *args)
        return
    sys.audit("subprocess.Popen", words[0], words, asked["cwd"], asked["env"])
    standard = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
    numbers = [0, 1, 2, *sorted(asked["pass_fds"])]
    request = {
        "module": module,
        "words": words if module == SCRIPT else words[3:],
        "environment": dict(environment),
        "directory": os.getcwd() if asked["cwd"] is None else os.fspath(asked["cwd"]),
        "is_leader": asked["start_new_session"],
        "is_tied": asked["preexec_fn"] is not None,
        "fds": numbers,
    }
    given = [number if fd == -1 else fd for fd, number in zip((*standard, *numbers[3:]), numbers, strict=False)]
    try:
        popen.pid = _server.fork(request, given)
        popen._child_created = True  # type: ignore[attr-defined]
    finally:
        popen._close_pipe_fds(*(asked[name] for name in _PIPES))  # type: ignore[attr-defined]


def _as_words(command: Any) -> list[str]:
    """Return a command as a list of texts. A command for a shell is one word."""
    words = [command] if isinstance(command, str | bytes | os.PathLike) else command
    return [os.fsdecode(word) for word in words]


def _module(words: Sequence[str]) -> str | None:
    """Return the module that a server's command runs; None for all other commands."""
    if words[:4] == [sys.executable, "-P", "-m", LIFELINE]:
        return LIFELINE
    if words[0] == str(Path(sys.executable).with_name("klamm")) and words[1:2] == ["broker"]:
        return SCRIPT
    return None


def _has_own_start(environment: Mapping[str, str]) -> bool:
    """Return whether Python would run a program of a test at its start."""
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    return any(Path(entry, "sitecustomize.py").exists() for entry in path if entry)


def _start_state(environment: Mapping[str, str]) -> object:
    """Return what decides how Python starts: some variables, directories with a customization, and limits."""
    variables = {name: value for name, value in environment.items() if name.startswith(_AT_START)}
    entries = variables.pop("PYTHONPATH", "").split(os.pathsep)
    customizing = [entry for entry in entries if entry and (Path(entry) / "sitecustomize.py").is_file()]
    return variables, customizing, [resource.getrlimit(limit) for limit in _LIMITS]
