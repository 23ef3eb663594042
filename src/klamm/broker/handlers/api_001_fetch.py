"""Fetch (key 1), v4-18.

Returns whole batches as stored in the segments: up to ``partition_max_bytes`` per partition, and up to the smaller of
``max_bytes`` and the broker's ``fetch.max.bytes`` in total. The first batch of the first partition with data is
returned whatever its size. Waits up to ``max_wait_ms`` for ``min_bytes``; appends wake the wait. Only the beginning of
a large response is read by the handler. The rest is read from disk when the connection can send it, so a client that
does not read costs no memory.
Fetch sessions (KIP-227), topic ids from v13 on, leader epochs (KIP-320), the leader's address when another broker id
was asked or the client's leader epoch is older (KIP-951). read_committed reads up to the last stable offset, also waits
for that to advance, and returns the aborted transactions in the range it read.
Not implemented: follower fetching (KIP-392), fetches of replicas, tiered storage.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from klamm.broker.fetch.response import FetchedBody, PartitionRead
from klamm.broker.fetch.sessions import named_partitions
from klamm.broker.topics.partitions import find_topic, leader_log
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError, OffsetOutOfRangeError
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.security.acls import AclOperation
from klamm.server.route import Route
from klamm.storage.log import WAITING_ENDS, LogRange, aborted_in, find_committed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.context import RequestContext
    from klamm.broker.fetch.sessions import FetchPartition, FetchPlan
    from klamm.storage.log import PartitionLog

API: Final = Api(key=ApiKey.FETCH, min_version=4, max_version=18)
_READ_COMMITTED: Final = 1
"""Value of ``isolation_level``; 0 is read_uncommitted."""
_READ_AT_ONCE: Final = 512 * 1024
"""Bytes of a response that the handler reads. If the disk fails for these, the partition gets an error code."""
_NAMES_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors that are answered with the current leader and its epoch (KIP-951)."""
_UNKNOWN: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class _Waiter:
    """Waiting fetch that is woken when enough bytes were appended."""

    __slots__ = ("_left", "woken")

    def __init__(self, min_bytes: int) -> None:
        self._left = min_bytes
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def appended(self, size: int) -> None:
        """Count appended bytes, and wake the fetch when they are enough."""
        self._left -= size
        if self._left <= 0 and not self.woken.done():
            self.woken.set_result(None)


class _Found:
    """Result of one pass over all partitions."""

    __slots__ = ("failed", "logs", "partitions", "seen", "size")

    def __init__(self) -> None:
        self.partitions: list[tuple[FetchPartition, PartitionRead]] = []
        self.logs: list[PartitionLog] = []
        self.seen: list[int] = []
        """End offset of each log at the time of the pass."""
        self.size = 0
        self.failed = False


async def handle(request: FetchRequest, context: RequestContext) -> FetchedBody:
    """Respond at once if there is enough data or an error; otherwise wait."""
    named = await context.time_slice.listed(named_partitions(request))
    plan = context.services.fetch_sessions.plan(request, context.api_version, named)
    if plan.error_code:
        return FetchedBody(error_code=plan.error_code)
    found = await _look(plan.partitions, request, context)
    if request.max_wait_ms > 0 and _is_too_little(found, request):
        found = await _wait_for_more(plan, found, request, context)
    return await _answer(plan, found, context)


def _is_too_little(found: _Found, request: FetchRequest) -> bool:
    return not found.failed and bool(found.logs) and found.size < request.min_bytes


async def _wait_for_more(plan: FetchPlan, found: _Found, request: FetchRequest, context: RequestContext) -> _Found:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.max_wait_ms / 1000
    while True:
        await _wait(found, request, deadline - loop.time())
        found = await _look(plan.partitions, request, context)
        # Records of an open transaction are in the log, but must not be read yet.
        may_wait = request.isolation_level == _READ_COMMITTED and loop.time() < deadline
        if not (may_wait and _is_too_little(found, request)):
            return found


async def _wait(found: _Found, request: FetchRequest, timeout_s: float) -> None:
    waiter = _Waiter(request.min_bytes - found.size)
    timer = asyncio.get_running_loop().call_later(timeout_s, waiter.appended, WAITING_ENDS)
    for log in found.logs:
        log.waiters.add(waiter)
    try:
        # Appends between the pass and the registration of the waiter did not wake it.
        if all(log.high_watermark == seen for log, seen in zip(found.logs, found.seen, strict=True)):
            await waiter.woken
    finally:
        timer.cancel()
        for log in found.logs:
            log.waiters.discard(waiter)


async def _look(partitions: Sequence[FetchPartition], request: FetchRequest, context: RequestContext) -> _Found:
    found = _Found()
    left = min(request.max_bytes, context.services.configs.int_value("fetch.max.bytes"))
    for wanted in partitions:
        await context.time_slice.give_way()
        answer = PartitionRead(topic=wanted.topic, topic_id=wanted.topic_id, partition=wanted.partition)
        found.partitions.append((wanted, answer))
        try:
            _find(wanted, answer, left, found, context, is_committed=request.isolation_level == _READ_COMMITTED)
        except KafkaApiError as error:
            answer.error_code = error.error_code
            # An unknown partition must not end the wait: its client would retry without a pause.
            found.failed = found.failed or error.error_code not in _UNKNOWN
        left -= len(answer.records)
        found.size += len(answer.records)
    return found


def _find(
    wanted: FetchPartition,
    answer: PartitionRead,
    left: int,
    found: _Found,
    context: RequestContext,
    *,
    is_committed: bool,
) -> None:
    topic = find_topic(context, AclOperation.READ, name=wanted.topic, topic_id=wanted.topic_id)
    try:
        log = leader_log(context, topic, wanted.partition, current_leader_epoch=wanted.current_leader_epoch)
    except KafkaApiError as error:
        if error.error_code in _NAMES_LEADER:
            answer.current_leader = topic.leader(wanted.partition), context.services.cluster.leader_epoch
        raise
    found.logs.append(log)
    found.seen.append(log.high_watermark)
    if wanted.last_fetched_epoch >= 0:
        diverging = log.end_offset_for_epoch(wanted.last_fetched_epoch)
        if diverging.epoch < 0:
            raise OffsetOutOfRangeError(f"Leader epoch {wanted.last_fetched_epoch} of {log.name} is not known")
        if diverging.epoch < wanted.last_fetched_epoch or diverging.start_offset < wanted.fetch_offset:
            answer.diverging_epoch = diverging
            _set_offsets(answer, log)
            found.failed = True
            return
    offset, max_bytes = wanted.fetch_offset, min(wanted.max_bytes, left)
    if is_committed:
        records = find_committed(log, offset, max_bytes, min_one_batch=found.size == 0)
        answer.aborted = aborted_in(log, offset, records)
    else:
        records = log.find(offset, max_bytes, min_one_batch=found.size == 0)
    answer.records = b"" if records is None else records
    _set_offsets(answer, log)


def _set_offsets(answer: PartitionRead, log: PartitionLog) -> None:
    answer.high_watermark, answer.log_start_offset = log.high_watermark, log.log_start_offset
    answer.last_stable_offset = log.last_stable_offset


async def _answer(plan: FetchPlan, found: _Found, context: RequestContext) -> FetchedBody:
    answers = []
    session = plan.session
    left = _READ_AT_ONCE
    async for wanted, answer in context.time_slice.over(found.partitions):
        left -= _read_small(answer, left)
        if session is not None and not _has_news(wanted, answer) and plan.is_incremental:
            continue
        answers.append(answer)
        if session is not None and answer.records:
            session.move_to_end(wanted)
    leaders = {answer.current_leader[0] for answer in answers if answer.current_leader is not None}
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


ROUTE: Final = Route(api=API, request=FetchRequest, handle=handle)
