"""Byte counters of the network layer."""

from __future__ import annotations


class Traffic:
    """Frame bytes received and sent by all connections, counted without TLS overhead. Used on the event loop only."""

    __slots__ = ("received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
