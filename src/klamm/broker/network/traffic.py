"""What has gone over the wire."""

from __future__ import annotations


class Traffic:
    """Bytes of frames of all connections, before and after TLS has done its part. Loop-confined."""

    __slots__ = ("received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
