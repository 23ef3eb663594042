"""Producer ids of the target, raised above those in mirrored logs before a promotion.

The batches of the source keep their producer ids. A broker that later gives one of these ids to a new producer would
take the first batches of this producer for duplicates, or reject them with OUT_OF_ORDER_SEQUENCE_NUMBER. The controller
assigns ids to brokers in blocks of 1,000, in ascending order, and each broker uses up its block. Each block is a record
of the target's metadata log, so their number is limited.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.errors import RETRIABLE_CODES, ConnectionLostError, api_error
from klamm.mirror.replica.errors import PromotionError, PromotionWaitsError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.retries import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.kafka_client.connection.connection import Connection

BLOCK_SIZE: Final = 1000
"""Number of producer ids in a block (Kafka's ``ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE``)."""
MAX_BLOCKS: Final = 100_000
"""Maximum number of blocks to use up."""
TURN_S: Final = 2.0
"""Seconds after which the caller goes on with other work. Ids that were used up stay so."""
_FIRST_PAUSE_S: Final = 0.005
_MAX_PAUSE_S: Final = 0.2
_PATIENCE_S: Final = 10.0


def next_producer_id(node_id: int, connection: Connection) -> int:
    """Return a new producer id of a broker. One without a block waits for the controller; so does this.

    Raises:
        KafkaApiError: The broker rejects the request: the principal may write to no topic.
        ConnectionLostError: It does not respond, or gets no block in time.
    """
    deadline, backoff = time.monotonic() + _PATIENCE_S, Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
    request = InitProducerIdRequest(transactional_id=None)
    while True:
        response = connection.call(request, InitProducerIdResponse, timeout_s=_PATIENCE_S)
        if response.error_code == ErrorCode.NONE:
            return response.producer_id
        error = api_error(response.error_code)
        if response.error_code not in RETRIABLE_CODES:
            raise error
        if time.monotonic() >= deadline:
            raise ConnectionLostError(f"broker {node_id} gets no producer ids: {error}") from error
        time.sleep(backoff.next_s())


def end_of_block(producer_id: int) -> int:
    """Return the first producer id after the block of another one. -1: 0."""
    return (producer_id // BLOCK_SIZE + 1) * BLOCK_SIZE


def raise_producer_ids(
    allocate: Callable[[], range],
    brokers: Sequence[Callable[[], int]],
    at_least: int,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Use up the producer ids below a bound, so that no broker gives one of them to a producer any more.

    Args:
        allocate: Takes the next block from the controller. No producer gets the ids in it.
        brokers: Return a new producer id of each live broker of the target. One that starts later gets a later block.
        at_least: Lowest id that brokers may give from now on.
        clock: Monotonic time in seconds.

    Returns:
        The lowest id that a broker gave at the end.

    Raises:
        PromotionWaitsError: It takes longer than ``TURN_S``. Calling again goes on.
        PromotionError: More than ``MAX_BLOCKS`` blocks would be used up.
    """
    deadline = clock() + TURN_S

    def check_time(producer_id: int) -> None:
        if clock() >= deadline:
            raise PromotionWaitsError(f"the target's producer ids are raised to {at_least}: {producer_id} so far")

    ids = [next_id() for next_id in brokers]
    if min(ids, default=at_least) < at_least:
        while (stop := allocate().stop) < at_least:
            if at_least - stop > MAX_BLOCKS * BLOCK_SIZE:
                raise PromotionError(
                    f"the log has producer ids up to {at_least}, the target assigns {stop} next: at most "
                    f"{MAX_BLOCKS * BLOCK_SIZE:,} can be used up. Wait until the target has forgotten the producers "
                    "with the highest ids (producer.id.expiration.ms)"
                )
            check_time(stop)
    for at, next_id in enumerate(brokers):
        while ids[at] < at_least:
            check_time(ids[at])
            ids[at] = next_id()
    return min(ids, default=at_least)
