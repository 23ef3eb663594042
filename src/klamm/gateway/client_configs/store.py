"""Owner of the client configs of a cluster, in one gateway of several.

A change is decided on all current configs and written upstream. The response is sent when the change has been read
back. Gateways exclude each other by one transactional id:

=============  ========================================================================================================
State          Meaning
=============  ========================================================================================================
not the owner  Before a change, the gateway fences all others and reads the topic to its end.
owner          The image has every committed change, so the next one is decided and written at once. If another gateway
               has taken over meanwhile, the upstream rejects the write.
after an error The outcome of the change is unknown. The gateway takes over again, which ends the transaction for good,
               and finds the change in the topic or decides it again. A change that the upstream rejects each time,
               for example because a record is too large, fails at once.
=============  ========================================================================================================

Waiting changes are written together, in one transaction, which has their history, too.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import ChainMap, deque
from dataclasses import field
from typing import TYPE_CHECKING, Final

from klamm.client_config_runtime.skipped_records import SkippedRecords
from klamm.client_config_runtime.source import ClientConfigSource, plan_entries
from klamm.gateway.client_configs.config_log import (
    HISTORY_TOPIC,
    TOPIC,
    apply_records,
    change_ids,
    config_records,
    history_records,
)
from klamm.gateway.upstream.internal_topic import InternalTopicGoneError, final_code
from klamm.gateway.upstream.topic_worker import TopicWorker
from klamm.kafka_client.data.records import RecordsRejectedError
from klamm.kafka_client.errors import CLUSTER_ERRORS, INVALID_RECORDS_CODES, TransactionLostError, api_error
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode
from klamm.retries import backoff_s
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from klamm.client_config_runtime.registration_log import RegistrationLog
    from klamm.client_configs.definitions import BrokerLimits
    from klamm.client_configs.entities import ClientConfigEntity
    from klamm.client_configs.plan import AlterEntry, ClientConfigChange, EntryPlan
    from klamm.gateway.client_configs.topic_image import FollowedTopic
    from klamm.gateway.upstream.internal_topic import TransactionalTopic
    from klamm.history.change import Author
    from klamm.protocol.errors import KafkaApiError
    from klamm.protocol.records import Record

logger = logging.getLogger(__name__)

_ALTER_TIMEOUT_S: Final = 25.0
_READ_BACK_S: Final = 10.0
_MAX_ENTRIES: Final = 2_000
"""Entries of requests that are written together. A larger request is written alone."""
_FIRST_BACKOFF_S: Final = 0.02
_LAST_BACKOFF_S: Final = 1.0
_RANDOM: Final = random.Random()  # noqa: S311 - no secret; of our own, because programs may seed the global one


@dataclass(slots=True, kw_only=True, eq=False)
class _PendingAlter:
    """A request that waits for its outcome."""

    entries: Sequence[AlterEntry]
    author: Author
    outcome: asyncio.Future[Sequence[EntryPlan]]
    plans: Sequence[EntryPlan] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A transaction."""

    id: str
    requests: Sequence[_PendingAlter]
    was_read: asyncio.Event


@dataclass(slots=True, kw_only=True)
class _Draft:
    """Configs with the changes of some requests that are not in the image yet."""

    image: Mapping[ClientConfigEntity, Mapping[str, str]]
    changed: dict[ClientConfigEntity, dict[str, str]] = field(default_factory=dict)
    authors: dict[ClientConfigEntity, Author] = field(default_factory=dict)
    history: list[tuple[ClientConfigChange, Author]] = field(default_factory=list)
    """Changes that change a value."""

    @property
    def configs(self) -> Mapping[ClientConfigEntity, Mapping[str, str]]:
        """Configs of every entity as they will be."""
        return ChainMap(self.changed, self.image)  # type: ignore[arg-type]  # only read

    def apply(self, plan: EntryPlan, author: Author) -> None:
        """Add the changes of an entry."""
        for change in plan.changes:
            own = self.changed.setdefault(change.entity, dict(self.image.get(change.entity, {})))
            self.authors[change.entity] = author
            if change.new != change.old:
                self.history.append((change, author))
            if change.new is None:
                own.pop(change.name, None)
            else:
                own[change.name] = change.new


class ClientConfigStore(ClientConfigSource):
    """Configs of users and client ids. Used on the event loop only.

    Args:
        topic: Reader of the internal topic, whose image this is.
        writer: Writer of the internal topic.
        registration_topic: Reader of the registration topic.
        registrations: Registrations of clients.
        limits: Function that returns the limits for values.
        now_ms: Wall clock, in milliseconds since the epoch.
    """

    def __init__(
        self,
        topic: FollowedTopic,
        writer: TransactionalTopic,
        *,
        registration_topic: FollowedTopic,
        registrations: RegistrationLog,
        limits: Callable[[], BrokerLimits],
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(registrations, SkippedRecords(TOPIC))
        self._is_topic_gone = False
        self._topic = topic
        self._registration_topic = registration_topic
        self._writer = writer
        self._limits = limits
        self._now_ms = now_ms
        self._pending: deque[_PendingAlter] = deque()
        self._wanted = asyncio.Event()
        self._last: _Change | None = None
        """Transaction that has not been read back yet."""
        self._is_owner = False
        self._alone = 0
        """Number of requests to write alone, because the record of one of them is rejected."""
        self._latest_failure = ""
        """Why the latest transaction could not be written; empty if it was."""
        self._worker = TopicWorker(f"write-{TOPIC}", writer.close)

    async def on_load(self, records: Sequence[Record], slices: TimeSlice) -> None:
        """Replace all configs by those of the topic's records.

        Changes that were committed during the load may be missing, so the gateway takes over again before the next one.
        """
        configs: dict[ClientConfigEntity, dict[str, str]] = {}
        self._skipped.begin()
        async for record in slices.over(records):
            apply_records(configs, (record,), self._skipped)
        self._configs = configs
        self._is_owner = False
        self._applied(records)

    def on_records(self, records: Sequence[Record]) -> None:
        """Apply further records of the topic."""
        apply_records(self._configs, records, self._skipped)
        self._applied(records)

    def _applied(self, records: Sequence[Record]) -> None:
        """Notify the listeners, and the change in progress if it is one of the records."""
        self._notify()
        if self._last is not None and self._last.id in change_ids(records):
            self._last.was_read.set()

    def start(self, create: Callable[[], Awaitable[None]]) -> None:
        """Start serving changes. ``create`` creates the internal topics that do not exist."""
        self._worker.start(self._write(create), "Client configs: a task")

    async def close(self) -> None:
        """Stop. Waiting changes get no response."""
        await self._worker.close()

    def check_loaded(self, *, with_registrations: bool) -> None:
        """Check that the topic of the configs has been read, and that of the registrations if they are needed."""
        for topic in (self._topic, self._registration_topic) if with_registrations else (self._topic,):
            if not topic.is_loaded:
                raise api_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{topic.name} is being read")

    async def alter(
        self,
        entries: Sequence[AlterEntry],
        *,
        validate_only: bool,
        author: Author,
        slices: TimeSlice,
    ) -> Sequence[EntryPlan]:
        """Apply each entry completely or not at all; return when the changes are committed and visible here.

        Raises:
            KafkaApiError: The upstream rejects the records of the changes, which are not made. UNKNOWN_SERVER_ERROR: it
                cannot be written, or REQUEST_TIMED_OUT: not in time. The changes may still be made.
        """
        self.check_loaded(with_registrations=False)
        if validate_only:
            return await plan_entries(entries, self._configs, self._limits(), slices)
        pending = _PendingAlter(entries=entries, author=author, outcome=asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._wanted.set()
        try:
            async with asyncio.timeout(_ALTER_TIMEOUT_S):
                return await pending.outcome
        except TimeoutError:
            reason = f": {self._latest_failure}" if self._latest_failure else ""
            raise api_error(ErrorCode.REQUEST_TIMED_OUT, f"{TOPIC} cannot be written at present{reason}") from None

    # -- the only writer of this gateway

    async def _write(self, create: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while some := self._next_requests():
                try:
                    await self._commit(some, create)
                except (*CLUSTER_ERRORS, TransactionLostError, InternalTopicGoneError) as error:
                    is_invalid = isinstance(error, RecordsRejectedError) and bool(error.codes & INVALID_RECORDS_CODES)
                    self._is_owner = self._is_owner and is_invalid  # the transaction was aborted
                    if is_invalid and len(some) > 1:
                        self._alone = len(some)
                        continue
                    self._is_topic_gone = isinstance(error, InternalTopicGoneError)
                    if (code := final_code(error)) is not None:
                        # An earlier attempt may have made the change, unless the records themselves are rejected.
                        outcome = "The change is not made" if is_invalid else f"{TOPIC} cannot be written"
                        self._fail(some, api_error(code, f"{outcome}: {error}"))
                        continue
                    failures += 1
                    self._latest_failure = str(error)
                    logger.log(
                        logging.DEBUG if isinstance(error, TransactionLostError) else logging.WARNING,
                        "Client configs cannot be written, trying again: %s",
                        error,
                    )
                    max_s = backoff_s(failures, _FIRST_BACKOFF_S, _LAST_BACKOFF_S)
                    await asyncio.sleep(_RANDOM.uniform(0, max_s))
                else:
                    failures = 0
                    self._latest_failure = ""

    def _next_requests(self) -> list[_PendingAlter]:
        """Return requests to write together, oldest first. They stay in the queue until they have an outcome."""
        while self._pending and self._pending[0].outcome.done():
            self._pending.popleft()
        some: list[_PendingAlter] = []
        count = 0
        for pending in self._pending:
            count += len(pending.entries)
            if some and (count > _MAX_ENTRIES or self._alone):
                break
            if not pending.outcome.done():
                some.append(pending)
        return some

    async def _commit(self, some: Sequence[_PendingAlter], create: Callable[[], Awaitable[None]]) -> None:
        """Decide and write requests in one transaction, and settle them when it has been read back."""
        if not self._is_owner:
            await self._take_over(create)
        if self._last is not None:  # the commit was interrupted, and the take-over has revealed its outcome
            last, self._last = self._last, None
            if last.was_read.is_set():
                self._settle(last.requests)
                return
        draft, slices = _Draft(image=self._configs), TimeSlice()
        for pending in some:
            pending.plans = await plan_entries(pending.entries, draft.configs, self._limits(), slices)
            async for plan in slices.over(pending.plans):
                draft.apply(plan, pending.author)
        if draft.authors:
            self._last = _Change(id=uuid.uuid4().hex, requests=some, was_read=asyncio.Event())
            await self._worker.call(self._writer.commit, self._records(draft, self._last.id))
            try:
                async with asyncio.timeout(_READ_BACK_S):
                    await self._last.was_read.wait()
            except TimeoutError:
                raise TimeoutError(f"the change was not read back within {_READ_BACK_S:g} s") from None
            self._last = None
        self._settle(some)

    def _records(self, draft: _Draft, change_id: str) -> dict[str, list[Record]]:
        """Return the records of a change by topic."""
        at_ms = self._now_ms()
        records = {TOPIC: config_records(draft.changed, draft.authors.items(), change_id=change_id, at_ms=at_ms)}
        if draft.history:
            records[HISTORY_TOPIC] = history_records(draft.history, at_ms=at_ms)
        return records

    async def _take_over(self, create: Callable[[], Awaitable[None]]) -> None:
        if self._is_topic_gone:
            await create()
        load = self._topic.loads
        records, position = await self._worker.call(self._writer.take_over, self._topic.position)
        if load != self._topic.loads:
            raise InternalTopicGoneError(f"{TOPIC} was loaded again")
        self._topic.take(records, position, load=load)
        self._is_owner = True

    def _fail(self, some: Sequence[_PendingAlter], error: KafkaApiError) -> None:
        self._alone = max(0, self._alone - 1)
        logger.warning("A change of client configs has failed: %s", error)
        for pending in some:
            if not pending.outcome.done():
                pending.outcome.set_exception(error)

    def _settle(self, some: Sequence[_PendingAlter]) -> None:
        self._alone = max(0, self._alone - 1)
        for pending in some:
            _log_changes(pending)
            if not pending.outcome.done():
                pending.outcome.set_result(pending.plans)


def _log_changes(pending: _PendingAlter) -> None:
    """Log each change with its author."""
    author = pending.author
    for change in (change for plan in pending.plans for change in plan.changes if change.old != change.new):
        logger.info(
            "Client config %s of %s: %s -> %s, by %s (client id %s)",
            change.name,
            change.entity,
            change.old,
            change.new,
            author.principal,
            author.client_id,
        )
