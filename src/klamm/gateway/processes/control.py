"""Messages between a gateway and its worker processes: JSON over a Unix socket that preserves message boundaries."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Final

Message = dict[str, Any]

_MAX_BYTES: Final = 128 * 1024
_MAX_DESCRIPTORS: Final = 1


def channel() -> tuple[socket.socket, socket.socket]:
    """Return two connected, non-blocking sockets."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


def send(end: socket.socket, message: Message, descriptor: int | None = None) -> bool:
    """Send a message, with a file descriptor if one is given; return whether the socket took it.

    Raises:
        OSError: The other process has ended.
    """
    data = json.dumps(message).encode()
    try:
        if descriptor is None:
            end.send(data)
        else:
            socket.send_fds(end, [data], [descriptor])
    except BlockingIOError:
        return False
    return True


def receive(end: socket.socket) -> tuple[Message | None, socket.socket | None]:
    """Return the next message, and the socket that came with it. The message is None if the other process has ended.

    Raises:
        BlockingIOError: There is no message.
    """
    try:
        data, descriptors, _, _ = socket.recv_fds(end, _MAX_BYTES, _MAX_DESCRIPTORS)
    except ConnectionError:
        return None, None
    received = None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
        received = socket.socket(fileno=descriptor)
    return (json.loads(data) if data else None), received
