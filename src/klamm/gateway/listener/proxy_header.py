"""Header of the PROXY protocol, versions 1 and 2: the address of a client that connects through a load balancer.

The header comes before all other bytes of a connection, also before a TLS handshake. ``ProxyHeader`` is sans-I/O: it
returns the number of bytes to read next, never more than belong to the header.

============  ==========================================================  ============================================
Version       Form                                                        Limit
============  ==========================================================  ============================================
1             ``PROXY TCP4 SOURCE DESTINATION PORT PORT`` and CR LF       107 bytes
2             Signature, command, family, length, addresses, extensions   ``MAX_V2_BYTES``
============  ==========================================================  ============================================

A header without an address of the client (``UNKNOWN``, ``LOCAL``, Unix sockets) leaves the address of the connection in
force. A checksum among the extensions of version 2 is checked. Any other beginning of a connection is rejected.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from typing import TYPE_CHECKING, Final

from klamm.protocol.errors import ProtocolError
from klamm.protocol.records.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
MAX_V1_BYTES: Final = 107
MAX_V2_BYTES: Final = 4096
"""Longest header of version 2 that is read. Load balancers send some hundred bytes."""
_V1: Final = re.compile(
    rb"PROXY (?:UNKNOWN(?: [^\r\n]*)?|(?P<family>TCP4|TCP6) (?P<source>[0-9a-fA-F.:]+) (?P<target>[0-9a-fA-F.:]+)"
    rb" (?P<port>0|[1-9]\d{0,4}) (?P<target_port>0|[1-9]\d{0,4}))\r\n"
)
_V2: Final = struct.Struct(">12sBBH")
_MIN_V1_REST: Final = 2
_LOCAL: Final = 0x20
_PROXIED: Final = 0x21
_ADDRESS_BYTES: Final = {0x00: 0, 0x11: 4, 0x12: 4, 0x21: 16, 0x22: 16, 0x31: 108, 0x32: 108}
"""Size of one address by family and transport."""
_TCP: Final = (0x11, 0x21)
_UNIX: Final = (0x31, 0x32)
_EXTENSION: Final = struct.Struct(">BH")
_CHECKSUM: Final = 0x03
_MAX_PORT: Final = 65_535


class ProxyHeader:
    """Header of one connection, received in parts."""

    __slots__ = ("_kept", "source", "wanted")

    def __init__(self) -> None:
        self._kept = bytearray()
        self.wanted = len(SIGNATURE)
        """Number of bytes to read next. 0 after the end of the header."""
        self.source: tuple[str, int] | None = None
        """Address of the client; None if the header has none."""

    def receive(self, data: bytes) -> None:
        """Add bytes, at most ``wanted``.

        Raises:
            ProtocolError: The bytes are not a valid header.
        """
        self._kept += data
        self.wanted -= len(data)
        if self.wanted:
            return
        kept = bytes(self._kept)
        if kept.startswith(SIGNATURE):
            self._receive_v2(kept)
        elif kept.startswith(b"PROXY "):
            self._receive_v1(kept)
        else:
            raise ProtocolError("The connection begins without a header of the PROXY protocol")

    def _receive_v1(self, kept: bytes) -> None:
        if kept.endswith(b"\r\n"):
            self.source = _v1_source(kept)
        elif len(kept) >= MAX_V1_BYTES:
            raise ProtocolError(f"The header of the PROXY protocol is longer than {MAX_V1_BYTES} bytes")
        else:
            self.wanted = 1 if kept.endswith(b"\r") else min(_MIN_V1_REST, MAX_V1_BYTES - len(kept))

    def _receive_v2(self, kept: bytes) -> None:
        if len(kept) < _V2.size:
            self.wanted = _V2.size - len(kept)
            return
        _, command, family, length = _V2.unpack_from(kept)
        if command not in (_LOCAL, _PROXIED):
            raise ProtocolError(f"The header of the PROXY protocol has the unknown command 0x{command:02x}")
        if _V2.size + length > MAX_V2_BYTES:
            raise ProtocolError(f"The header of the PROXY protocol is longer than {MAX_V2_BYTES} bytes")
        self.wanted = _V2.size + length - len(kept)
        if not self.wanted:
            self.source = _v2_source(kept, command, family)


def _v1_source(line: bytes) -> tuple[str, int] | None:
    match = _V1.fullmatch(line)
    if match is None:
        raise ProtocolError("The header of the PROXY protocol is malformed")
    if match["family"] is None:
        return None
    expected = ipaddress.IPv4Address if match["family"] == b"TCP4" else ipaddress.IPv6Address
    try:
        source = expected(match["source"].decode())
        expected(match["target"].decode())
    except ValueError as error:
        raise ProtocolError("The header of the PROXY protocol has an invalid address") from error
    if max(int(match["port"]), int(match["target_port"])) > _MAX_PORT:
        raise ProtocolError(f"The header of the PROXY protocol has a port above {_MAX_PORT}")
    return str(source), int(match["port"])


def _v2_source(header: bytes, command: int, family: int) -> tuple[str, int] | None:
    size = _ADDRESS_BYTES.get(family)
    if command == _LOCAL:
        return None
    if size is None:
        raise ProtocolError(f"The header of the PROXY protocol has the unknown family 0x{family:02x}")
    has_ports = family not in (0, *_UNIX)
    end = _V2.size + 2 * size + (4 if has_ports else 0)
    if end > len(header):
        raise ProtocolError("The header of the PROXY protocol ends in its addresses")
    _check_extensions(header, end)
    if family not in _TCP:
        return None
    source = ipaddress.ip_address(header[_V2.size : _V2.size + size])
    return str(source), int.from_bytes(header[end - 4 : end - 2])


def _check_extensions(header: bytes, position: int) -> None:
    """Check the extensions from a position on, and the checksum among them.

    Raises:
        ProtocolError: An extension ends beyond the header, or the checksum is wrong.
    """
    for kind, start, end in _extensions(header, position):
        if kind != _CHECKSUM:
            continue
        summed = header[:start] + bytes(end - start) + header[end:]
        if crc32c(summed) != int.from_bytes(header[start:end]):
            raise ProtocolError("The header of the PROXY protocol has a wrong checksum")


def _extensions(header: bytes, position: int) -> Iterable[tuple[int, int, int]]:
    """Return kind, start and end of the value of each extension."""
    while position < len(header):
        if position + _EXTENSION.size > len(header):
            raise ProtocolError("The header of the PROXY protocol ends in its extensions")
        kind, length = _EXTENSION.unpack_from(header, position)
        start = position + _EXTENSION.size
        position = start + length
        if position > len(header):
            raise ProtocolError("The header of the PROXY protocol ends in its extensions")
        yield kind, start, position
