"""Fetch (key 1), v4-18.

Returns whole batches as stored in the segments: up to ``partition_max_bytes`` per partition, and up to the smaller of
``max_bytes`` and the broker's ``fetch.max.bytes`` in total. The first batch of the first partition with data is
returned whatever its size. Waits up to ``max_wait_ms`` for ``min_bytes``; appends wake the wait. Only the beginning of
a large response is read by the handler. The rest is read from disk when the connection can send it, so a client that
does not read costs no memory.
A fetch beyond the client's ``consumer_byte_rate`` returns no records and the throttle time (KIP-219). ``max_bytes`` and
``min_bytes`` are at most one second of this quota.
Fetch sessions (KIP-227), topic ids from v13 on, leader epochs (KIP-320), the leader's address when another broker id
was asked or the client's leader epoch is older (KIP-951). read_committed reads up to the last stable offset, also waits
for that to advance, and returns the aborted transactions in the range it read.
Not implemented: follower fetching (KIP-392), fetches of replicas, tiered storage.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from klamm.broker.fetch.sessions import named_partitions
from klamm.broker.requests.fetch_lookup import FetchLookup
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.server.fetch_response import FetchedBody
from klamm.server.route import Route
from klamm.storage.log import LogRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.context import RequestContext
    from klamm.broker.fetch.sessions import FetchPartition, FetchPlan
    from klamm.broker.requests.fetch_lookup import FoundPartition
    from klamm.server.fetch_response import PartitionRead

API: Final = Api(key=ApiKey.FETCH, min_version=4, max_version=18)
_READ_AT_ONCE: Final = 512 * 1024
"""Bytes of a response that the handler reads. If the disk fails for these, the partition gets an error code."""

_INT_MAX: Final = 2**31 - 1


async def handle(request: FetchRequest, context: RequestContext) -> FetchedBody:
    """Respond at once if there is enough data or an error; otherwise wait."""
    time_slice = context.time_slice
    named = await time_slice.listed(named_partitions(request))
    plan = await context.services.fetch_sessions.plan(request, context.api_version, named, time_slice)
    if plan.error_code:
        return FetchedBody(error_code=plan.error_code)
    lookup = FetchLookup(plan.partitions, request, context)
    await lookup.find()
    if context.throttles is not None:
        wait_s = context.throttles.charge_fetch(context.session, context.client_id, lookup.size)
        if wait_s > 0:
            return _throttled(plan, context, wait_s)
    return await _answer(plan, lookup.partitions, context)


def _throttled(plan: FetchPlan, context: RequestContext, wait_s: float) -> FetchedBody:
    """Return a response without partitions. As in Kafka, a full fetch opens no session then.

    The partitions of a session stay as they were last sent.
    """
    throttle_time_ms = min(math.ceil(wait_s * 1000), _INT_MAX)
    session = plan.session
    if session is None or plan.is_incremental:
        return FetchedBody(session_id=0 if session is None else session.session_id, throttle_time_ms=throttle_time_ms)
    context.services.fetch_sessions.close(session.session_id)
    return FetchedBody(throttle_time_ms=throttle_time_ms)


async def _answer(plan: FetchPlan, partitions: Sequence[FoundPartition], context: RequestContext) -> FetchedBody:
    answers = []
    leaders = set()
    session = plan.session
    left = _READ_AT_ONCE
    async for each in context.time_slice.over(partitions):
        wanted, answer = each.wanted, each.answer
        left -= _read_small(answer, left)
        if session is not None and not _has_news(wanted, answer) and plan.is_incremental:
            continue
        answers.append(answer)
        if answer.current_leader is not None:
            leaders.add(answer.current_leader[0])
        if session is not None and answer.records:
            session.move_to_end(wanted)
    return FetchedBody(
        session_id=session.session_id if session is not None else 0,
        partitions=answers,
        node_endpoints=[
            FetchResponse.NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in context.services.cluster.nodes_at(context.session.listener)
            if node.node_id in leaders
        ],
    )


def _read_small(answer: PartitionRead, left: int) -> int:
    """Read the records of a partition if they are few enough; return the number of bytes read."""
    records = answer.records
    if not isinstance(records, LogRange) or len(records) > left:
        return 0
    try:
        answer.records = records.read()
    except KafkaApiError as error:
        answer.error_code, answer.records = error.error_code, b""
    return len(answer.records)


def _has_news(wanted: FetchPartition, answer: PartitionRead) -> bool:
    """Return whether the response of a fetch session must include a partition, and record what it includes."""
    sent = wanted.sent_high_watermark, wanted.sent_log_start_offset
    wanted.sent_high_watermark, wanted.sent_log_start_offset = answer.high_watermark, answer.log_start_offset
    if answer.error_code:
        wanted.sent_high_watermark = -1  # sent again after the error has passed
        return True
    if answer.records or answer.diverging_epoch is not None:
        return True
    return sent != (answer.high_watermark, answer.log_start_offset)


ROUTE: Final = Route(api=API, request=FetchRequest, handle=handle, may_wait=True)
