"""Metadata (key 3), v0-13, in the gateway: the addresses of all brokers are replaced.

They come first in the response, so the topics behind them are copied without being decoded. The API is always admitted:
a client whose id is denied reaches the broker that rejects it. Clients have no clear way to report an error in it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from klamm.gateway.frames.addresses import AddressCarrier
from klamm.gateway.frames.wire import INT32
from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.metadata import MetadataResponse
from klamm.protocol.primitives import check_length, read_uvarint, write_uvarint
from klamm.protocol.readers import ELEMENT_COST, struct_reader
from klamm.protocol.writers import struct_writer

if TYPE_CHECKING:
    from klamm.gateway.frames.addresses import AddressBook, Body

_THROTTLE_SINCE: Final = 3
"""First version of responses that begin with ``throttle_time_ms``."""
_MAX_BROKERS: Final = 100_000


def _rewrite(body: memoryview, version: int, book: AddressBook) -> Body:
    flexible = MetadataResponse.is_flexible(version)
    start = INT32.size if version >= _THROTTLE_SINCE else 0
    read = struct_reader(MetadataResponse.MetadataResponseBroker, version, flexible)
    write = struct_writer(MetadataResponse.MetadataResponseBroker, version, flexible)
    out = bytearray()
    try:
        if flexible:
            count, position = read_uvarint(body, start)
            write_uvarint(out, count)
            count -= 1
        else:
            (count,), position = INT32.unpack_from(body, start), start + INT32.size
            out += INT32.pack(count)
        check_length(count, _MAX_BROKERS, "brokers")
        for _ in range(count):
            broker, position = read(body, position, len(body), [ELEMENT_COST])
            broker.host, broker.port = book.advertised(broker.node_id, broker.host, broker.port)
            write(broker, out)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolError(f"Metadata response v{version}: {error}") from error
    return [body[:start], out, body[position:]]


API: Final = RelayedApi(
    key=ApiKey.METADATA,
    versions=(0, 13),
    is_always_admitted=True,
    addresses=AddressCarrier(
        response=MetadataResponse,
        addressed=lambda response: [(broker.node_id, broker) for broker in response.brokers],
        rewrite_body=_rewrite,
    ),
)
