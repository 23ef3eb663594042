"""This process's end of the control channel to a broker; ``klamm.broker.faults.channel`` is the broker's end."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from typing import Any, Final

from klamm.embedded.process import above_standard

_SIZE: Final = struct.Struct(">I")
_TIMEOUT_S: Final = 60.0
_ERRORS: Final = {"value": ValueError, "lookup": LookupError}


class ControlChannel:
    """Socket pair whose other end only the broker's process inherits. Thread-safe.

    It belongs to the process that created it. A process forked from that one holds a copy of the socket, but if both
    sent commands, one could receive the answer to a command of the other.
    """

    def __init__(self) -> None:
        self._socket, inherited = socket.socketpair()
        self._inherited = socket.socket(fileno=above_standard(inherited.detach()))
        self._socket.settimeout(_TIMEOUT_S)
        self._lock = threading.Lock()
        self._is_paused = False
        self._owner = os.getpid()

    @property
    def inherited_fd(self) -> int:
        """File descriptor that the broker's process inherits."""
        return self._inherited.fileno()

    def started(self) -> None:
        """Close the other end in this process, after the broker's process has inherited it."""
        self._inherited.close()

    def close(self) -> None:
        """Close the channel. A paused broker continues. Further calls do nothing."""
        self._inherited.close()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # closing alone has no effect while a forked process holds a copy
        self._socket.close()

    @property
    def is_closed(self) -> bool:
        """Return whether the channel cannot be used.

        It was closed, because the broker's process was stopped or restarted, or it belongs to another process.
        """
        return self._socket.fileno() < 0 or self._owner != os.getpid()

    def call(self, command: str, **arguments: object) -> tuple[Any, bytes]:
        """Send a command and return its result, with the record batches that belong to it.

        Raises:
            ValueError: An argument is wrong; the message names the allowed values.
            LookupError: A topic or partition does not exist.
            RuntimeError: The broker is paused, has ended, or failed to run the command.
        """
        with self._lock:
            if self._is_paused and command != "resume":
                raise RuntimeError(f"{command}: the broker is paused, call resume() first")
            try:
                body = json.dumps([command, arguments]).encode()
                self._socket.sendall(_SIZE.pack(len(body)) + body)
                answer, data = json.loads(self._read_frame()), self._read_frame()
            except (OSError, EOFError) as error:
                self._socket.close()
                raise RuntimeError(f"{command}: the broker does not answer, its process may have ended") from error
            except BaseException:
                self._socket.close()  # what arrives later would be taken for the answer to the next command
                raise
            self._is_paused = command == "pause"
        if "error" in answer:
            raise _ERRORS.get(answer["kind"], RuntimeError)(answer["error"])
        return answer["result"], data

    def _read_frame(self) -> bytes:
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)
