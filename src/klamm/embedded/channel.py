"""This process's end of the control channel to a broker; ``klamm.broker.faults.main`` is the broker's end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import threading
import weakref
from typing import Any, Final

from klamm.embedded.server_process import above_standard

__tracebackhide__ = True
_SIZE: Final = struct.Struct(">I")
_TIMEOUT_S: Final = 60.0
_ERRORS: Final = {"value": ValueError, "lookup": LookupError}


class ControlChannel:
    """Socket pair whose other end only the broker's process inherits. Thread-safe.

    It belongs to the process that created it, and is closed in processes forked from that one. If both sent commands,
    one could receive the answer to a command of the other. And a paused broker, which continues when the channel
    closes, would stay paused when only the first process has ended.
    """

    def __init__(self) -> None:
        self._socket, inherited = socket.socketpair()
        self._inherited = socket.socket(fileno=above_standard(inherited.detach()))
        self._socket.settimeout(_TIMEOUT_S)
        self._lock = threading.Lock()
        self._is_paused = False
        _channels.add(self)

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
        """Return whether the channel was closed.

        The broker's process was stopped or restarted, or this process was forked from the one that created it.
        """
        return self._socket.fileno() < 0

    def close_copy(self) -> None:
        """Close the channel in a forked process. It stays open in the process that created it."""
        self._socket.close()

    def call(self, command: str, **arguments: object) -> tuple[Any, bytes]:
        """Send a command and return its result, with the record batches that belong to it.

        Raises:
            ValueError: An argument is wrong; the message names the allowed values.
            LookupError: A topic or partition does not exist.
            TypeError: An argument has a type that no command takes, such as bytes.
            RuntimeError: The broker is paused, has ended, or failed to run the command.
        """
        body = json.dumps([command, arguments]).encode()
        with self._lock:
            if self._is_paused and command != "resume" and not self._is_hung_up():
                raise RuntimeError(f"{command}: the broker is paused, call resume() first")
            try:
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

    def _is_hung_up(self) -> bool:
        """Return whether a paused broker has ended. It sends nothing, so its socket is readable only at its end."""
        if self.is_closed:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

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


_channels: Final[weakref.WeakSet[ControlChannel]] = weakref.WeakSet()


def _close_copies() -> None:
    for channel in tuple(_channels):
        channel.close_copy()


os.register_at_fork(after_in_child=_close_copies)
