"""Process that has imported klamm's servers, and forks one of them for each request: see ``fork_server``."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import signal
import socket
import sys
import time
from importlib import import_module
from typing import Any, Final, TextIO

_PR_SET_PDEATHSIG: Final = 1
_IMPORTED: Final = ("klamm.broker.main", "klamm.broker.faults.main", "klamm.gateway.main", "klamm.cli")
LIFELINE: Final = "klamm.embedded.lifeline"
SCRIPT: Final = "klamm.script"
REQUEST_BYTES: Final = 200_000
MOST_FDS: Final = 64
_ADOPTION_S: Final = 30.0


def main(fd: int) -> int:
    """Answer each request with a process id, until the other side is closed."""
    gc.disable()
    for module in (*_IMPORTED, LIFELINE, SCRIPT):
        import_module(module)
    gc.freeze()
    gc.enable()
    requests = socket.socket(fileno=fd)
    while True:
        text, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES, MOST_FDS)
        if not text:
            return 0
        gate, gate_of_child = os.pipe()
        pid = os.fork()
        if not pid:
            pid = os.fork()
            if not pid:
                requests.detach()
                return _run(json.loads(text), fds)
            os.write(gate_of_child, b"%d" % pid)
            os._exit(0)
        os.waitpid(pid, 0)
        requests.send(os.read(gate, 100))
        for each in (gate, gate_of_child, *fds):
            os.close(each)


def _run(request: dict[str, Any], fds: list[int]) -> int:
    """Become the requested process and run it to its end."""
    deadline = time.monotonic() + _ADOPTION_S
    while os.getppid() != request["parent"]:
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.0005)
    _take_descriptors(fds, request["fds"])
    _open_standard_streams()
    if request["is_leader"]:
        os.setsid()
    if request["is_tied"]:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    added = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:0] = [entry for entry in added if entry not in sys.path]
    sys.argv[:] = request["words"]
    if request["module"] == LIFELINE:
        return int(import_module(LIFELINE).main(sys.argv[1:]))
    return int(import_module(SCRIPT).main())


def _take_descriptors(fds: list[int], numbers: list[int]) -> None:
    """Give the descriptors the requested numbers, and close all others."""
    above = max(numbers) + 1
    for fd, number in zip([fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in fds], numbers, strict=True):
        os.dup2(fd, number)
    for fd in {int(name) for name in os.listdir("/proc/self/fd")}.difference(numbers):
        os.closerange(fd, fd + 1)


def _open_standard_streams() -> None:
    """Open the standard streams as Python does when it starts: those of the helper know what its descriptors were."""
    sys.stdin, sys.stdout = _opened(0, "r", sys.stdin), _opened(1, "w", sys.stdout)
    sys.stderr = _opened(2, "w", sys.stderr, buffering=1)


def _opened(fd: int, mode: str, like: TextIO, *, buffering: int = -1) -> TextIO:
    return open(fd, mode, buffering, like.encoding, like.errors, closefd=False)  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
