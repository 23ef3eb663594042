"""Broker addresses in responses, replaced by addresses of the gateway. Node ids stay the same.

=====================  =========================================================================================
Metadata               All brokers. They come first, so the topics behind them are copied without being decoded.
FindCoordinator        The coordinators.
DescribeCluster        All brokers.
Produce v10 and newer  The new leaders of partitions (KIP-951), in the rare responses that have some.
=====================  =========================================================================================

Fetch, ShareFetch, ShareAcknowledge and DescribeQuorum carry addresses, too, in versions that the gateway does not serve
(``apis``).
"""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.describe_cluster import DescribeClusterResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorResponse
from klamm.protocol.messages.metadata import MetadataResponse
from klamm.protocol.messages.produce import ProduceResponse
from klamm.protocol.primitives import check_length, read_uvarint, write_uvarint
from klamm.protocol.readers import ELEMENT_COST, struct_reader
from klamm.protocol.writers import struct_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from klamm.protocol.schema import Message

_COUNT: Final = struct.Struct(">i")
_THROTTLE_SINCE: Final = 3
"""First version of Metadata responses that begin with ``throttle_time_ms``."""
_MOST_BROKERS: Final = 100_000
_ENDPOINTS_SINCE: Final = 10
"""First version of Produce responses with addresses of new leaders (KIP-951)."""
_NO_ENDPOINTS: Final = bytes(5)
"""End of a Produce response without addresses: no throttle time and no tagged field. A response with addresses ends
with the port, the rack and the tagged fields of the last one, so one of its last five bytes is not zero.
"""


class AddressBook(Protocol):
    """Addresses of the gateway by node id."""

    def advertised(self, node_id: int, host: str, port: int) -> tuple[str, int]:
        """Return host and port of the gateway for a broker.

        Args:
            node_id: Node id of the broker.
            host: Host of the broker itself. The book stores it, so that the gateway can connect to the broker.
            port: Port of the broker itself.
        """
        ...


Body: TypeAlias = "Sequence[bytes | bytearray | memoryview]"
Rewriter: TypeAlias = "Callable[[memoryview, int, AddressBook], Body]"
"""Takes the body of a response, its version and the address book; returns the body with replaced addresses in pieces.
It raises ProtocolError when the body is malformed.
"""


def replace_addresses(message: Message, book: AddressBook) -> None:
    """Replace the broker addresses in a response in place. Messages of other classes are not changed."""
    for node_id, at in _addressed(message):
        if node_id >= 0 and at.host:
            at.host, at.port = book.advertised(node_id, at.host, at.port)


def _addressed(message: Message) -> Iterable[tuple[int, Any]]:
    """Return the node ids in a response, each with the struct that holds its address."""
    if isinstance(message, MetadataResponse):
        return [(broker.node_id, broker) for broker in message.brokers]
    if isinstance(message, DescribeClusterResponse):
        return [(broker.broker_id, broker) for broker in message.brokers]
    if isinstance(message, FindCoordinatorResponse):
        coordinators: tuple[Any, ...] = (message, *message.coordinators)
        return [(found.node_id, found) for found in coordinators]
    if isinstance(message, ProduceResponse):
        return [(leader.node_id, leader) for leader in message.node_endpoints]
    return ()


def _whole(response_class: type[Message]) -> Rewriter:
    def rewrite(body: memoryview, version: int, book: AddressBook) -> Body:
        message = decode(response_class, version, body)
        replace_addresses(message, book)
        return [encode(message, version)]

    return rewrite


def _produce(body: memoryview, version: int, book: AddressBook) -> Body:
    if body[-len(_NO_ENDPOINTS) :] == _NO_ENDPOINTS:
        return [body]
    return _PRODUCE(body, version, book)


def _metadata(body: memoryview, version: int, book: AddressBook) -> Body:
    flexible = MetadataResponse.is_flexible(version)
    start = _COUNT.size if version >= _THROTTLE_SINCE else 0
    read = struct_reader(MetadataResponse.MetadataResponseBroker, version, flexible)
    write = struct_writer(MetadataResponse.MetadataResponseBroker, version, flexible)
    out = bytearray()
    try:
        if flexible:
            count, position = read_uvarint(body, start)
            write_uvarint(out, count)
            count -= 1
        else:
            (count,), position = _COUNT.unpack_from(body, start), start + _COUNT.size
            out += _COUNT.pack(count)
        check_length(count, _MOST_BROKERS, "brokers")
        for _ in range(count):
            broker, position = read(body, position, len(body), [ELEMENT_COST])
            broker.host, broker.port = book.advertised(broker.node_id, broker.host, broker.port)
            write(broker, out)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolError(f"Metadata response v{version}: {error}") from error
    return [body[:start], out, body[position:]]


_PRODUCE: Final = _whole(ProduceResponse)


class Carrier(NamedTuple):
    """Response that carries broker addresses."""

    response: type[Message]
    rewrite: Rewriter
    since: int = 0
    """First version with addresses."""


CARRIERS: Final[Mapping[int, Carrier]] = MappingProxyType(
    {
        ApiKey.METADATA: Carrier(MetadataResponse, _metadata),
        ApiKey.FIND_COORDINATOR: Carrier(FindCoordinatorResponse, _whole(FindCoordinatorResponse)),
        ApiKey.DESCRIBE_CLUSTER: Carrier(DescribeClusterResponse, _whole(DescribeClusterResponse)),
        ApiKey.PRODUCE: Carrier(ProduceResponse, _produce, _ENDPOINTS_SINCE),
    }
)
"""Carriers of broker addresses by API key."""
