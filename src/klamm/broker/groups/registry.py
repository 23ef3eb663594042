"""All groups of a broker, with their timers and their way to disk.

A step of a group and the submission of its change to the metadata store happen without an await in between. A response
is sent only when the last submitted change of its group is on disk (``settle``). So no client sees a state that a power
cut could undo.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import field
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.broker.groups.classic.group import ClassicGroup
from klamm.broker.groups.classic.model import Moment
from klamm.broker.groups.classic.snapshot import from_payload, to_payload
from klamm.broker.groups.consumer import snapshot as consumer_snapshot
from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.consumer.migration import to_classic
from klamm.broker.groups.consumer.snapshot import GroupWriter
from klamm.broker.groups.errors import GroupIdNotFoundError, InvalidGroupIdError, NotCoordinatorError
from klamm.broker.groups.offsets import OffsetTable, PendingOffsets
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode, StorageError
from klamm.storage.metadata.changes import DropGroup, PutGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from klamm.broker.groups.consumer.migration import AnyGroup
    from klamm.broker.groups.consumer.model import Assignment
    from klamm.broker.groups.settings import GroupCoordinatorSettings
    from klamm.broker.topics.catalog import TopicCatalog
    from klamm.server.time_slice import TimeSlice
    from klamm.storage.metadata.changes import Change
    from klamm.storage.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

_Partition: TypeAlias = "tuple[UUID, int]"


class HeldReplies:
    """Held replies of one group, by the partitions that they wait for. Used on the event loop only."""

    def __init__(self) -> None:
        self._waiting: dict[_Partition, asyncio.Future[bool]] = {}
        self._has_ended = False

    async def wait(self, partitions: Sequence[_Partition], timeout_s: float) -> bool:
        """Wait until one of the partitions is released, and return whether it was."""
        if self._has_ended:
            return False
        released: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.update(dict.fromkeys(partitions, released))
        try:
            async with asyncio.timeout(timeout_s):
                return await released
        except TimeoutError:
            return False
        finally:
            for partition in partitions:
                if self._waiting.get(partition) is released:
                    del self._waiting[partition]

    def release(self, partitions: Assignment) -> None:
        """End the waits for some partitions, which have no owner now."""
        if not self._waiting:
            return
        for topic_id, indexes in partitions.items():
            for index in indexes:
                _end(self._waiting.get((topic_id, index)), is_released=True)

    def end(self) -> None:
        """End all waits without success, also those that would begin later."""
        self._has_ended = True
        for released in self._waiting.values():
            _end(released, is_released=False)


def _end(released: asyncio.Future[bool] | None, *, is_released: bool) -> None:
    if released is not None and not released.done():
        released.set_result(is_released)


async def until_durable(change: asyncio.Future[None]) -> None:
    """Wait until a change is on disk.

    Several responses may wait for one change. A cancelled request does not cancel it for the others.

    Raises:
        NotCoordinatorError: The change could not be written and was rolled back. Kafka uses the same code for a storage
            error here: clients look for the coordinator and retry.
    """
    try:
        await asyncio.shield(change)
    except StorageError as error:
        raise NotCoordinatorError(error.error_message) from error


def log_failure(change: asyncio.Future[None]) -> None:
    """Log the error of a change that possibly no request waits for, such as one of a timed step."""
    if not change.cancelled() and change.exception() is not None:
        logger.warning("A change of a group or a transaction could not be stored: %s", change.exception())


MAX_ID_BYTES: Final = 32_000
"""Largest size of a group, instance or client id. Old protocol versions cannot send longer ones."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """A group with its timer and its last submitted change."""

    group: AnyGroup
    writer: GroupWriter = field(default_factory=GroupWriter)
    """Stored forms of a consumer group."""
    held: HeldReplies = field(default_factory=HeldReplies)
    """Replies of a consumer group that wait for partitions."""
    is_stored: bool = False
    """Whether a form of the group, not only its offsets, was loaded from the store or submitted to it."""
    save: asyncio.Future[None] | None = None
    """Change of a consumer group that waits for the one before it; done when it is on disk."""
    timer: asyncio.TimerHandle | None = None
    timer_at: float = math.inf
    last_change: asyncio.Future[None] | None = None
    """The last change of this group that was submitted to the store."""

    @property
    def is_being_written(self) -> bool:
        """Whether a change of the group is on its way to the disk."""
        return self.last_change is not None and not self.last_change.done()


class GroupRegistry:
    """Owner of all groups and committed offsets. Used on one event loop only, so it needs no lock."""

    def __init__(
        self,
        store: MetadataStore,
        settings: GroupCoordinatorSettings,
        topics: TopicCatalog,
        session_timeout_ms: Callable[[str], int],
        *,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        """Create a registry without groups; ``load`` reads the stored ones.

        Args:
            store: Metadata store.
            settings: Broker configs.
            topics: Topic catalog.
            session_timeout_ms: Function that returns the session timeout of a consumer group by group id.
            now: Monotonic clock, seconds.
            wall_ms: Wall clock, milliseconds since the epoch.
        """
        self.offsets = OffsetTable()
        self.pending = PendingOffsets()
        """Offsets of open transactions."""
        self._store = store
        self._settings = settings
        self._topics = topics
        self._session_timeout_ms = session_timeout_ms
        self._now = now
        self._wall_ms = wall_ms
        self._entries: dict[str, Entry] = {}
        self._last_deletion: asyncio.Future[None] | None = None
        """The last change that deleted a group."""

    def __iter__(self) -> Iterator[AnyGroup]:
        """Iterate over all groups."""
        return (entry.group for entry in tuple(self._entries.values()))

    def now(self) -> Moment:
        """Return the current time of both clocks."""
        return Moment(seconds=self._now(), wall_ms=self._wall_ms())

    def entry(self, group_id: str) -> Entry:
        """Return a group.

        Raises:
            GroupIdNotFoundError: The group does not exist.
        """
        entry = self._entries.get(group_id)
        if entry is None:
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
        return entry

    def is_current(self, entry: Entry) -> bool:
        """Return whether an entry is served. Those of before a failed commit are not, even if a request holds one."""
        return self._entries.get(entry.group.group_id) is entry

    def find(self, group_id: str) -> AnyGroup | None:
        """Return a group; None if it does not exist."""
        entry = self._entries.get(group_id)
        return None if entry is None else entry.group

    def last_change(self, group_id: str) -> asyncio.Future[None] | None:
        """Return the change to wait for before a response shows the present state of a group, or that there is none.

        ``settle`` waits for the changes of an entry that still exists. After a failed commit, the stored groups have
        replaced all entries; the change that was returned before then fails.
        """
        entry = self._entries.get(group_id)
        return self._last_deletion if entry is None or entry.last_change is None else entry.last_change

    def entry_or_new(self, group_id: str) -> Entry:
        """Return a group, created if necessary. A new group without members or offsets is dropped after its next step.

        Raises:
            InvalidGroupIdError: The group id is too long.
        """
        entry = self._entries.get(group_id)
        if entry is None:
            if len(group_id) > MAX_ID_BYTES or len(group_id.encode()) > MAX_ID_BYTES:
                raise InvalidGroupIdError(f"The group id is longer than {MAX_ID_BYTES} bytes.")
            entry = Entry(group=ClassicGroup(group_id, self._settings.limits, self.now()))
            self._entries[group_id] = entry
        return entry

    def after_step(self, entry: Entry) -> None:
        """Store the changes of a step and arm the timer for the next one. Must be called after every step."""
        group = entry.group
        now = self.now()
        if group.wake_at <= now.seconds:
            group.on_time(now)
        if isinstance(group, ConsumerGroup):
            entry.held.release(group.take_released())
            if group.can_become_classic:
                group = self._to_classic(entry, group, now)
        if group.take_unsaved():
            self._save(entry)
        if group.is_blank and not self._has_offsets(group.group_id):
            if entry.is_stored:  # with a static member that has left before the first generation
                self._drop(entry)
            else:
                self._forget(entry)
        elif group.wake_at < entry.timer_at:
            self._arm(entry, now)

    def submit(self, entry: Entry, changes: Sequence[Change]) -> None:
        """Queue changes of a group. ``settle`` waits for them."""
        future = self._store.submit(changes)
        future.add_done_callback(log_failure)
        entry.last_change = future

    def replace(self, entry: Entry, group: AnyGroup) -> None:
        """Replace a group by its other kind. The caller ends the step with ``after_step``.

        Parked requests get REBALANCE_IN_PROGRESS, so that their members join the group in its new form.
        """
        entry.group.disband(ErrorCode.REBALANCE_IN_PROGRESS)
        entry.group = group
        entry.writer = GroupWriter()

    async def settle(self, entry: Entry) -> None:
        """Wait until all changes of the group are on disk.

        Raises:
            NotCoordinatorError: The changes could not be written.
        """
        if entry.save is not None:
            await until_durable(entry.save)
        if entry.last_change is not None:
            await until_durable(entry.last_change)

    async def delete(self, entry: Entry) -> None:
        """Remove a group with its offsets, and wait until the change is on disk.

        Raises:
            NotCoordinatorError: The change could not be written.
        """
        group_id = entry.group.group_id
        self.offsets.drop_group(group_id)
        self.pending.drop_group(group_id)
        self._drop(entry)
        await self.settle(entry)

    def load(self) -> None:
        """Replace all groups and offsets with the stored ones.

        A group that cannot be read keeps its offsets and loses its members, which join again.
        """
        now = self.now()
        self.offsets = OffsetTable(self._store.load_group_offsets())
        self.pending = PendingOffsets(self._store.load_pending_offsets())
        for entry in self._entries.values():
            if entry.save is not None and not entry.save.done():
                entry.save.set_exception(StorageError("The change was rolled back with the one before it"))
        self._entries = {}
        self._last_deletion = None  # it may have failed
        for stored in self._store.load_groups():
            try:
                group = self._stored(stored, now)
            except ValueError as error:
                logger.error("%s; its members have to join again", error)  # noqa: TRY400 -- the message is complete
                continue
            entry = self._entries[stored.group_id] = Entry(group=group, is_stored=True)
            self._arm(entry, now)
        for group_id in self.offsets.group_ids():
            self.entry_or_new(group_id)

    def disband(self, error_code: ErrorCode) -> None:
        """Stop all timers and answer every parked request with an error."""
        for entry in tuple(self._entries.values()):
            _cancel_timer(entry)
            entry.held.end()
            entry.group.disband(error_code)

    async def expire(self, removable: Callable[[AnyGroup], Sequence[Change]], time_slice: TimeSlice) -> None:
        """Submit the changes of ``removable`` for each group, and remove empty groups without offsets (KIP-211)."""
        async for entry in time_slice.over(tuple(self._entries.values())):
            group = entry.group
            if not self.is_current(entry):
                continue  # removed during a pause
            changes = removable(group)
            if is_removed := group.is_deserted and not self._has_offsets(group.group_id):
                self._forget(entry)
                changes = (*changes, DropGroup(group_id=group.group_id))
            if changes:
                self.submit(entry, changes)
            if is_removed:
                self._last_deletion = entry.last_change

    def _stored(self, stored: PutGroup, now: Moment) -> AnyGroup:
        settings = self._settings
        if not consumer_snapshot.is_consumer_group(stored.payload):
            return from_payload(stored.group_id, stored.payload, settings.limits, now)
        group = consumer_snapshot.from_payload(stored.group_id, stored.payload, settings.consumer_limits, now)
        group.resume(self._session_timeout_ms(stored.group_id), now)
        return group

    # ---- changes

    def _save(self, entry: Entry) -> None:
        """Store a group. Changes of a consumer group that come while the one before is written are written together."""
        group = entry.group
        entry.is_stored = True
        if isinstance(group, ClassicGroup):
            self.submit(entry, (PutGroup(group_id=group.group_id, payload=to_payload(group)),))
        elif entry.last_change is None or entry.last_change.done():
            self._put(entry, group)
        elif entry.save is None:
            entry.save = asyncio.get_running_loop().create_future()
            entry.save.add_done_callback(log_failure)
            entry.last_change.add_done_callback(lambda _: self._save_rest(entry))

    def _put(self, entry: Entry, group: ConsumerGroup) -> None:
        self.submit(entry, (PutGroup(group_id=group.group_id, payload=entry.writer.payload(group)),))

    def _save_rest(self, entry: Entry) -> None:
        waiting, entry.save = entry.save, None
        if waiting is None or waiting.done():
            return
        if self.is_current(entry) and isinstance(entry.group, ConsumerGroup):
            self._put(entry, entry.group)
        # A group that was deleted or replaced meanwhile has submitted that itself.
        if entry.last_change is not None:
            entry.last_change.add_done_callback(lambda change: _copy_outcome(change, waiting))

    def _to_classic(self, entry: Entry, group: ConsumerGroup, now: Moment) -> ClassicGroup:
        classic = to_classic(group, self._topics, self._settings.limits, now)
        self.replace(entry, classic)
        return classic

    # ---- timers

    def _arm(self, entry: Entry, now: Moment) -> None:
        _cancel_timer(entry)
        wake_at = entry.group.wake_at
        if wake_at < math.inf:
            delay = max(wake_at - now.seconds, 0.0)
            entry.timer = asyncio.get_running_loop().call_later(delay, self._on_timer, entry)
            entry.timer_at = wake_at

    def run_due_timers(self) -> None:
        """Handle all deadlines that have passed, without waiting for the event loop."""
        now = self.now().seconds
        for entry in [entry for entry in self._entries.values() if entry.timer_at <= now]:
            self._on_timer(entry)

    def _on_timer(self, entry: Entry) -> None:
        _cancel_timer(entry)
        entry.group.on_time(self.now())
        self.after_step(entry)

    def _has_offsets(self, group_id: str) -> bool:
        return bool(self.offsets.of_group(group_id)) or self.pending.has_group(group_id)

    def _drop(self, entry: Entry) -> None:
        """Remove a group and its stored form."""
        self._forget(entry)
        self.submit(entry, (DropGroup(group_id=entry.group.group_id),))
        self._last_deletion = entry.last_change

    def _forget(self, entry: Entry) -> None:
        _cancel_timer(entry)
        self._entries.pop(entry.group.group_id, None)


def _copy_outcome(change: asyncio.Future[None], waiting: asyncio.Future[None]) -> None:
    if waiting.done():
        return
    if change.cancelled():
        waiting.cancel()
    elif (error := change.exception()) is not None:
        waiting.set_exception(error)
    else:
        waiting.set_result(None)


def _cancel_timer(entry: Entry) -> None:
    if entry.timer is not None:
        entry.timer.cancel()
    entry.timer = None
    entry.timer_at = math.inf
