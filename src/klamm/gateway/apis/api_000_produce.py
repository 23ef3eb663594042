"""Produce (key 0), v0-13, in the gateway.

Only ``acks`` is read of most requests: with ``acks=0`` there is no response. Client configs may raise it (KIP-649).
Responses of v10 and newer may carry the addresses of new leaders (KIP-951).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.gateway.frames.addresses import AddressCarrier
from klamm.gateway.frames.wire import INT16
from klamm.gateway.relay.api import AcksField, RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.produce import ProduceResponse
from klamm.protocol.primitives import read_uvarint, skip_tagged_fields

if TYPE_CHECKING:
    from klamm.gateway.frames.addresses import AddressBook, Body

_FLEXIBLE_SINCE: Final = 9
_TRANSACTIONAL_ID_SINCE: Final = 3
_ENDPOINTS_SINCE: Final = 10
"""First version of responses with addresses of new leaders (KIP-951)."""
_PLAIN: Final = bytes(2)
"""No tagged fields in the header, and no transactional id: the beginning of most requests."""
_NO_ENDPOINTS: Final = bytes(5)
"""End of a response without addresses: no throttle time and no tagged field. A response with addresses ends with the
port, the rack and the tagged fields of the last one, so one of its last five bytes is not zero.
"""


def acks_of(view: memoryview, api_version: int, body: int) -> tuple[int, int]:
    """Return ``acks`` of a request, and the position after it.

    Args:
        view: Bytes of the frame, size included.
        api_version: Version of the request.
        body: Position after the client id.

    Raises:
        IndexError: The view ends before ``acks``.
        struct.error: The view ends before ``acks``.
        ProtocolError: The request is malformed.
    """
    if api_version >= _FLEXIBLE_SINCE and view[body : body + 2] == _PLAIN:
        body += len(_PLAIN)
    elif api_version >= _FLEXIBLE_SINCE:
        body = skip_tagged_fields(view, body, len(view))
        length, body = read_uvarint(view, body)
        body += max(length - 1, 0)
    elif api_version >= _TRANSACTIONAL_ID_SINCE:
        (length,) = INT16.unpack_from(view, body)
        body += INT16.size + max(length, 0)
    acks: int = INT16.unpack_from(view, body)[0]
    return acks, body + INT16.size


def put_acks(view: memoryview, end: int, acks: int) -> None:
    """Replace ``acks`` in a request, given the position after it."""
    INT16.pack_into(view, end - INT16.size, acks)


def _rewrite(body: memoryview, version: int, book: AddressBook) -> Body | None:
    if body[-len(_NO_ENDPOINTS) :] == _NO_ENDPOINTS:
        return None
    return ADDRESSES.rewrite_all(body, version, book)


ADDRESSES: Final = AddressCarrier(
    response=ProduceResponse,
    addressed=lambda response: [(leader.node_id, leader) for leader in response.node_endpoints],
    first_version=_ENDPOINTS_SINCE,
    rewrite_body=_rewrite,
)
API: Final = RelayedApi(
    key=ApiKey.PRODUCE,
    versions=(0, 13),
    carries_records=True,
    acks=AcksField(read=acks_of, put=put_acks),
    addresses=ADDRESSES,
)
