"""Control loop for the consumer groups of a flow. Finds groups, writes checkpoints and commits offsets on the target.

A round (``GroupControl.turn``) runs the steps that are due, each with its own interval:

=====================  ==================================  ==========================================================
Step                   Interval                            Action
=====================  ==================================  ==========================================================
load                   once, repeated until it succeeds    Create the checkpoints topic, read the existing checkpoints
                                                           and the offset syncs.
find groups            refresh.groups.interval.seconds     List the source's groups, apply the group filter. A group
                                                           whose coordinator is unavailable, or for which the filter
                                                           fails, is looked for again after 30 s at the latest.
write checkpoints      emit.checkpoints.interval.seconds   Translate the committed offsets of each group and write
                                                           checkpoints that are more recent than the stored ones. This
                                                           step also runs if the one before failed.
sync offsets           sync.group.offsets.interval.seconds Commit the checkpoints' offsets for groups without members
                                                           on the target. Offsets only move forward. This step also runs
                                                           if one of the two steps before failed.
=====================  ==================================  ==========================================================

A failed round is retried after 1 to 30 s. It never stops the flow.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.admin import ErrorCode, KafkaApiError
from klamm.kafka_client.errors import CLUSTER_ERRORS, RETRIABLE_CODES, api_error, error_text
from klamm.mirror.cluster_admin import (
    KNOWN_AFTER_S,
    GroupUse,
    commit_offsets,
    consumer_groups,
    create_internal_topic,
    group_offsets,
    group_uses,
)
from klamm.mirror.groups.both_sides import BothSides, open_both_sides, side_connection
from klamm.mirror.groups.plans import (
    Logs,
    accepted,
    is_more_recent,
    not_equal,
    offsets_to_commit,
    remote_topic_of,
    translate_group,
)
from klamm.mirror.groups.stores import CheckpointStore
from klamm.mirror.progress.flow_progress import FlowGroups, MirroredGroupOffset
from klamm.mirror.progress.partition_progress import RecentAges
from klamm.mirror.records.internal_topic import TopicGoneError
from klamm.mirror.topics.claims import FlowClaim
from klamm.mirror.topics.config_sync import LoggedRejections
from klamm.mirror.topics.remote_topics import RemoteTopics
from klamm.properties import SettingsError
from klamm.retries import Backoff, LoggedReasons

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from klamm.admin import NewTopic, OffsetAndMetadata
    from klamm.mirror.cluster_admin import CommittedOffsets
    from klamm.mirror.groups.plans import Translated
    from klamm.mirror.progress.flow_progress import GroupStatus, PartitionStatus
    from klamm.mirror.records.formats import Checkpoint
    from klamm.mirror.records.internal_topic import LogBounds
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.settings.groups import GroupSettings
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)

_TURN_S: Final = 0.2
_FIRST_BACKOFF_S: Final = 1.0
_LAST_BACKOFF_S: Final = 30.0
_MAX_NAMES: Final = 5
_PASSING: Final = (*CLUSTER_ERRORS, TopicGoneError)


class GroupControl:
    """Control loop of one flow's groups. Runs in its own thread; failures never stop the flow."""

    def __init__(
        self,
        flow: FlowSettings,
        settings: GroupSettings,
        sides: BothSides,
        *,
        checkpoints: CheckpointStore,
        status: GroupStatus,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        place: Callable[[NewTopic], NewTopic] = lambda topic: topic,
        progress: Callable[[], Iterable[PartitionStatus]] | None = None,
    ) -> None:
        """Create the loop. Nothing is requested before ``run`` or ``turn``.

        Args:
            flow: Settings of the flow.
            settings: Settings of the flow's groups.
            sides: Connections to both clusters.
            checkpoints: Checkpoints of the flow.
            status: Status of the groups, updated after each step.
            clock: Monotonic clock in seconds.
            now: Wall clock in seconds since the epoch.
            place: Returns the topic for checkpoints with the brokers of its partitions, or as it is.
            progress: Returns the progress of the partitions, if this process copies them and they keep their offsets.
        """
        self._progress = progress
        self._place = place
        self._flow = flow
        self._settings = settings
        self._sides = sides
        self._syncs = sides.syncs
        self._checkpoints = checkpoints
        self._status = status
        self._led_by_brokers: frozenset[str] = frozenset()
        """Remote topics that were handed over, as of the latest sync of offsets."""
        self._clock = clock
        self.now = now
        self._source_of: dict[PartitionTuple, PartitionTuple] = {}
        """Source partitions of the remote partitions on which groups have, or had, offsets."""
        self._is_loaded = False
        self._refresh_due = self._checkpoints_due = self._sync_due = 0.0
        self._groups: tuple[str, ...] = ()
        self._skipped: dict[str, str] = {}
        self._rows: dict[str, dict[PartitionTuple, MirroredGroupOffset]] = {}
        """Status of each offset, by group and source partition."""
        self._latencies: dict[str, dict[PartitionTuple, RecentAges]] = {}
        self._logged = LoggedReasons()
        """Logged reasons of failed rounds."""
        self._not_listed = LoggedRejections()
        self._logged_reasons: dict[tuple[str, str], frozenset[str]] = {}
        """Logged reasons, by group and kind."""
        self._problem = ""
        self._topics_are_known_at = clock() + KNOWN_AFTER_S

    def run(self, stop: threading.Event, claim: FlowClaim | None = None) -> None:
        """Run rounds until ``stop`` is set, then a last one. End without a last one if the claim is lost.

        Args:
            stop: Event that ends the loop.
            claim: Claim of the flow. None: always held.
        """
        claim = claim or FlowClaim.always()
        backoff = Backoff(_FIRST_BACKOFF_S, _LAST_BACKOFF_S)
        while not stop.is_set() and claim.is_held:
            is_early = False
            try:
                self.turn()
            except _PASSING as error:
                problem = error_text(error)
                is_early = isinstance(error, TopicGoneError) and self._clock() < self._topics_are_known_at
            except Exception as error:  # such as an error in a custom TopicFilter: the next round may succeed
                problem = f"{type(error).__name__}: {error}"
                if problem != self._problem:
                    logger.exception("%s: a round of groups failed", self._flow.name)
            else:
                problem = ""
                backoff.reset()
            self._log_problem("" if is_early else problem)
            stop.wait(backoff.next_s() if problem else _TURN_S)
        if self._is_loaded and not self._problem and claim.is_held:
            self._finish()

    def _finish(self) -> None:
        """Run a last round, so that after a mirror run to completion all groups have their final offsets."""
        try:
            self.sync()
        except _PASSING as error:
            logger.info("%s: the last round of groups failed: %s", self._flow.name, error)

    def sync(self) -> None:
        """Write checkpoints and commit offsets now. Errors as of ``turn``."""
        self._checkpoints_due = self._sync_due = 0.0
        self.turn()

    def turn(self) -> None:
        """Run the steps that are due.

        Raises:
            ConnectionError, TimeoutError: A cluster is unavailable. The next round retries.
            KafkaApiError: A cluster rejected a request until an operator changes something. Retried nevertheless.
            TopicGoneError: The topic of offset syncs does not exist.
        """
        now = self._clock()
        if not self._is_loaded:
            self._load()
        # A step that fails does not keep those after it from running: offsets of known groups are translated while the
        # search for groups fails, and committed while the source is unavailable, which is when consumers move.
        try:
            if now >= self._refresh_due:
                are_all_known = self._find_groups()
                refresh = (
                    self._settings.refresh_interval.total_seconds() if self._settings.refresh_enabled else math.inf
                )
                self._refresh_due = now + (refresh if are_all_known else min(refresh, _LAST_BACKOFF_S))
        finally:
            try:
                if now >= self._checkpoints_due and (self._groups or now < self._refresh_due):
                    self._write_checkpoints()
                    self._checkpoints_due = now + self._settings.checkpoints_interval.total_seconds()
            finally:
                if self._settings.sync_enabled and self._groups and now >= self._sync_due:
                    self._sync_offsets()
                    self._sync_due = now + self._settings.sync_interval.total_seconds()

    def _load(self) -> None:
        factor = self._settings.checkpoints_replication_factor
        rejected = create_internal_topic(
            self._sides.target, self._settings.checkpoints_topic, replication_factor=factor, place=self._place
        )
        if rejected is not None:
            raise api_error(
                rejected.error_code,
                f"{self._settings.checkpoints_topic} could not be created with "
                f"checkpoints.topic.replication.factor={factor}: {error_text(rejected)}",
            )
        try:
            self._checkpoints.load()
        except TopicGoneError as error:
            if self._clock() < self._topics_are_known_at:
                raise
            logger.warning(
                "%s, or may not be read: only offsets of records that are mirrored from now on are translated", error
            )
            # Without the earlier checkpoints, an old offset sync could translate to an offset before them.
            self._syncs.refresh(newest_only=True)
        else:
            self._syncs.refresh()
        self._is_loaded = True

    # --- groups -------------------------------------------------------------------------------------------------------

    def _find_groups(self) -> bool:
        """Find the groups of the source.

        Return False if one is left out because its coordinator is unavailable, or because the group filter fails.
        """
        candidates, skipped, are_all_known = self._wanted_groups()
        mirrored = []
        for group, offsets in group_offsets(self._sides.source, candidates).items():
            if isinstance(offsets, KafkaApiError):
                is_unavailable = offsets.error_code in RETRIABLE_CODES
                if group in self._groups and is_unavailable:
                    mirrored.append(group)
                else:
                    skipped[group] = error_text(offsets)
                    are_all_known &= not is_unavailable
            elif self._accepted(offsets):
                mirrored.append(group)
            else:
                skipped[group] = "it has no offsets on topics that are mirrored"
        new = sorted(group for group, reason in skipped.items() if self._skipped.get(group) != reason)
        for reason in sorted({skipped[group] for group in new}):
            named = _some([group for group in new if skipped[group] == reason])
            logger.info("%s: groups skipped: %s: %s", self._flow.name, named, reason)
        if added := sorted(set(mirrored) - set(self._groups)):
            logger.info("%s: groups found: %s", self._flow.name, _some(added))
        self._groups, self._skipped = tuple(sorted(mirrored)), skipped
        kept = frozenset(mirrored)
        self._rows = {group: rows for group, rows in self._rows.items() if group in kept}
        self._latencies = {group: ages for group, ages in self._latencies.items() if group in kept}
        self._publish()
        return are_all_known

    def _wanted_groups(self) -> tuple[list[str], dict[str, str], bool]:
        """Return the groups that the group filter wants, the others with the reason, and whether it failed for none."""
        wanted: list[str] = []
        skipped: dict[str, str] = {}
        are_all_known = True
        for group in consumer_groups(self._sides.source):
            try:
                if self._settings.group_filter.should_replicate_group(group):
                    wanted.append(group)
                else:
                    skipped[group] = "not among groups, or excluded by groups.exclude"
            except Exception as error:  # of a custom filter: the other groups do not depend on it
                are_all_known = False
                skipped[group] = f"the group filter failed: {type(error).__name__}: {error}"
                if self._skipped.get(group) != skipped[group]:
                    logger.exception("%s: the group filter failed for group %s", self._flow.name, group)
        return wanted, skipped, are_all_known

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _write_checkpoints(self) -> None:
        self._syncs.refresh()
        asked_at_ms = self.now() * 1000
        offsets = self._offsets_of_groups()
        logs = self._logs(offsets.values())
        self._checkpoints.discard_stale(logs.target, self._source_of, self._syncs)
        due: list[Checkpoint] = []
        for group, of_group in offsets.items():
            translated = translate_group(self._flow, group, of_group, self._syncs, logs)
            due += [each for each in map(self._due_checkpoint, translated) if each is not None]
            for each in translated:
                self._note(group, each, of_group[each.topic, each.partition])
            self._log_reasons(
                group, "no checkpoint", [(f"{t.topic}-{t.partition}", t.reason) for t in translated if t.reason]
            )
        self._checkpoints.write(due, int(asked_at_ms))
        self._note_written(due, asked_at_ms)
        self._publish()

    def _logs(self, offsets: Collection[CommittedOffsets]) -> Logs:
        """Return the logs of partitions, with those that the copying does not regard as equal to the source."""
        logs = self._sides.logs(self._flow, offsets)
        if self._progress is None:
            return logs
        rows = {(row.topic, row.partition): row for row in self._progress()}
        mirrored = {where for of_group in offsets for where in of_group} - logs.handed_over.keys()
        reasons = {where: not_equal(rows.get(where), self._flow) for where in mirrored}
        return logs._replace(unequal={where: why for where, why in reasons.items() if why} | dict(logs.unequal))

    def _offsets_of_groups(self) -> dict[str, CommittedOffsets]:
        out: dict[str, CommittedOffsets] = {}
        rejected = {}
        for group, offsets in group_offsets(self._sides.source, self._groups).items():
            if isinstance(offsets, KafkaApiError):
                rejected[f"list offsets for consumer group {group} on cluster {self._flow.source.alias}"] = offsets
            else:
                out[group] = self._accepted(offsets)
        self._not_listed.log(rejected)
        return out

    def _accepted(self, offsets: CommittedOffsets) -> CommittedOffsets:
        """Return the offsets on mirrored topics, and remember the source partitions of their remote partitions."""
        out = accepted(self._flow, offsets)
        self._source_of |= {(remote_topic_of(self._flow, topic), at): (topic, at) for topic, at in out}
        return out

    def _due_checkpoint(self, translated: Translated) -> Checkpoint | None:
        made = translated.checkpoint
        if made is None:
            return None
        last = self._checkpoints.newest(made.group, made.topic, made.partition)
        return made if is_more_recent(made, last) else None

    def _note(self, group: str, translated: Translated, committed: OffsetAndMetadata) -> None:
        made = translated.checkpoint
        remote = remote_topic_of(self._flow, translated.topic)
        last = self._checkpoints.newest(group, remote, translated.partition)
        newest = last if made is None or not is_more_recent(made, last) else made
        rows, where = self._rows.setdefault(group, {}), (translated.topic, translated.partition)
        before = rows.get(where)
        rows[where] = MirroredGroupOffset(
            group=group,
            topic=translated.topic,
            partition=translated.partition,
            remote_topic=remote,
            source_offset=committed.offset,
            target_offset=None if newest is None else newest.downstream_offset,
            again_at_most=translated.again_at_most,
            reason=translated.reason,
            committed=None if before is None else before.committed,
            sync_reason="" if before is None else before.sync_reason,
            checkpoint_latency_ms=None if before is None else before.checkpoint_latency_ms,
        )

    def _note_written(self, written: Iterable[Checkpoint], asked_at_ms: float) -> None:
        now_ms = self.now() * 1000
        new = {(each.group, each.topic, each.partition) for each in written}
        written_ms = int(asked_at_ms)
        for group, rows in self._rows.items():
            latencies = self._latencies.setdefault(group, {})
            for where, row in rows.items():
                if (group, row.remote_topic, row.partition) in new:
                    ages = latencies.setdefault(where, RecentAges())
                    ages.observe(now_ms, first_timestamp=written_ms, max_timestamp=written_ms, count=1)
                if where in latencies:
                    rows[where] = replace(row, checkpoint_latency_ms=latencies[where].summary(now_ms))

    # --- offsets of groups on the target ------------------------------------------------------------------------------

    def _sync_offsets(self) -> None:
        groups = [group for group in self._groups if self._checkpoints.of_group(group)]
        remote_topics = {each.topic for group in groups for each in self._checkpoints.of_group(group)}
        # While the source is unavailable, the offset syncs that were read before are used. TopicGoneError is raised:
        # without any offset sync, a checkpoint of a remote topic that was deleted is not recognized.
        # The source may take long to respond, so it is read before the offsets of the target, which groups may change.
        with contextlib.suppress(*CLUSTER_ERRORS):
            self._syncs.refresh()
        self._led_by_brokers = self._sides.led_by_brokers(self._flow, remote_topics)
        states = group_uses(self._sides.target, groups)
        idle = [group for group in groups if isinstance(state := states[group], GroupUse) and state.is_idle]
        current = group_offsets(self._sides.target, idle)
        remote = {(each.topic, each.partition) for group in idle for each in self._checkpoints.of_group(group)}
        bounds = self._sides.target_reader.log_bounds(sorted(remote))
        self._checkpoints.discard_stale(bounds, self._source_of, self._syncs)
        due = {
            group: offsets_to_commit(self._checkpoints_to_commit(group), offsets, bounds)
            for group, offsets in current.items()
            if not isinstance(offsets, KafkaApiError)
        }
        rejected = commit_offsets(self._sides.target, due)
        for group in groups:
            state, offsets = states[group], current.get(group, {})
            further: Mapping[PartitionTuple, str] = {}
            if isinstance(state, KafkaApiError):
                why = f"it cannot be described on cluster {self._flow.target.alias}: {error_text(state)}"
                reasons = self._for_all(group, why)
            elif not state.is_idle:
                reasons = self._for_all(group, self._in_use(state.members))
            elif isinstance(offsets, KafkaApiError):
                reasons = self._for_all(group, f"its offsets cannot be listed: {error_text(offsets)}")
            else:
                reasons, further = self._note_commit(group, offsets, bounds, due[group], rejected[group])
            self._log_unsynced(group, reasons)
            self._note_synced(group, {**further, **reasons})
        self._publish()

    def _in_use(self, members: str) -> str:
        return f"it has {members} on cluster {self._flow.target.alias}"

    def _for_all(self, group: str, reason: str) -> dict[PartitionTuple, str]:
        return {(each.topic, each.partition): reason for each in self._checkpoints.of_group(group)}

    def _checkpoints_to_commit(self, group: str) -> list[Checkpoint]:
        """Return the newest checkpoints of a group, without those of topics that brokers lead."""
        return [each for each in self._checkpoints.of_group(group) if each.topic not in self._led_by_brokers]

    def _note_commit(
        self,
        group: str,
        current: CommittedOffsets,
        bounds: Mapping[PartitionTuple, LogBounds],
        due: CommittedOffsets,
        rejections: Mapping[PartitionTuple, KafkaApiError | None],
    ) -> tuple[dict[PartitionTuple, str], dict[PartitionTuple, str]]:
        """Note the committed offsets of a group. Return rejected ones and ones that need no commit, with the reasons.

        Args:
            group: Group without members.
            current: Its committed offsets on the target before.
            bounds: Bounds of the remote partitions.
            due: Offsets that were to be committed.
            rejections: Their rejections, None for success.
        """
        checkpoints = self._checkpoints_to_commit(group)
        alias = self._flow.target.alias
        absent = f"its partition does not exist on cluster {alias}, or has no leader"
        reasons = {at: absent for each in checkpoints if (at := (each.topic, each.partition)) not in bounds}
        for where, rejected in rejections.items():
            if rejected is None:
                logger.debug("%s: group %s: %s-%d set to %d", self._flow.name, group, *where, due[where].offset)
            elif rejected.error_code is ErrorCode.UNKNOWN_MEMBER_ID:
                reasons[where] = self._in_use("members")
            else:
                reasons[where] = error_text(rejected)
        done = {where: committed.offset for where, committed in due.items() if where not in reasons}
        have = {where: committed.offset for where, committed in current.items()} | done
        rows = self._rows.get(group, {})
        for where, row in rows.items():
            rows[where] = replace(row, committed=have.get((row.remote_topic, row.partition)))
        led = f"brokers of cluster {alias} lead its topic: groups continue with their offsets of the target"
        further = {
            (each.topic, each.partition): led
            for each in self._checkpoints.of_group(group)
            if each.topic in self._led_by_brokers
        } | {
            (each.topic, each.partition): f"it is further already on cluster {alias}"
            for each in checkpoints
            if have.get((each.topic, each.partition), -1) > each.downstream_offset
        }
        return reasons, further

    def _log_unsynced(self, group: str, reasons: Mapping[PartitionTuple, str]) -> None:
        unsynced = [(f"{topic}-{at}", why) for (topic, at), why in sorted(reasons.items())]
        self._log_reasons(group, "offsets are not synced", unsynced, level=logging.WARNING)

    def _note_synced(self, group: str, reasons: Mapping[PartitionTuple, str]) -> None:
        rows = self._rows.get(group, {})
        for where, row in rows.items():
            rows[where] = replace(row, sync_reason=reasons.get((row.remote_topic, row.partition), ""))

    # --- log and status -----------------------------------------------------------------------------------------------

    def _log_reasons(
        self, group: str, what: str, reasons: Iterable[tuple[str, str]], *, level: int = logging.INFO
    ) -> None:
        """Log each reason once, and again only after it was absent for a round."""
        by_reason: dict[str, list[str]] = {}
        for where, reason in reasons:
            by_reason.setdefault(reason, []).append(where)
        kept = frozenset(by_reason)
        for reason in sorted(kept - self._logged_reasons.get((group, what), frozenset())):
            places = _some(by_reason[reason])
            logger.log(level, "%s: group %s: %s: %s (%s)", self._flow.name, group, what, reason, places)
        self._logged_reasons[group, what] = kept

    def _log_problem(self, problem: str) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        if problem and self._logged.is_new(problem):
            logger.warning("%s: offsets of groups cannot all be translated now: %s", self._flow.name, problem)
        elif not problem and self._logged.clear():
            logger.info("%s: offsets of groups are translated again", self._flow.name)
        self._publish()

    def _publish(self) -> None:
        offsets = tuple(rows[where] for _, rows in sorted(self._rows.items()) for where in sorted(rows))
        damaged = (self._syncs.damaged, self._checkpoints.damaged)
        groups = FlowGroups(
            offsets=offsets,
            skipped=tuple(sorted(self._skipped.items())),
            problem=self._problem,
            damaged_records=sum(each.count for each in damaged),
            damage=tuple(each.latest for each in damaged if each.latest),
        )
        self._status.set(self._flow.name, groups)


def _some(names: Sequence[str]) -> str:
    """Return the first few names and the number of others."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def translate_groups(
    flow: FlowSettings,
    status: GroupStatus,
    stop: threading.Event,
    *,
    claim: FlowClaim | None = None,
    progress: Callable[[], Iterable[PartitionStatus]] | None = None,
) -> None:
    """Run the group control loop of a flow until ``stop`` is set, while the flow is claimed. Blocks.

    Returns at once if the flow has ``emit.checkpoints.enabled=false``.

    Args:
        flow: Settings of the flow.
        status: Status of the groups.
        stop: Event that ends the loop.
        claim: Claim of the flow. None: always held.
        progress: Returns the progress of the flow's partitions. Used if the flow keeps offsets.
    """
    if flow.groups is None:
        return
    claim = claim or FlowClaim.always()
    try:
        while not stop.is_set():
            if claim.wait_held(_TURN_S):
                with group_control(flow, status, progress) as control:
                    control.run(stop, claim)
    except Exception:  # log every error before the thread ends
        logger.exception("%s: offsets of groups are no longer translated, because of an unexpected error", flow.name)


@contextlib.contextmanager
def group_control(
    flow: FlowSettings, status: GroupStatus, progress: Callable[[], Iterable[PartitionStatus]] | None = None
) -> Iterator[GroupControl]:
    """Open the connections of a group control loop for the duration of the context. ``sync`` may be called directly.

    Args:
        flow: Settings of the flow.
        status: Status of the groups.
        progress: Returns the progress of the flow's partitions, if this process copies them.

    Raises:
        SettingsError: A client property is not supported, or checkpoints are disabled for the flow.
    """
    if flow.groups is None:
        raise SettingsError(
            f"{flow.name}: emit.checkpoints.enabled=false: group offsets cannot be translated without checkpoints"
        )
    with contextlib.ExitStack() as stack:
        sides = open_both_sides(stack, flow)
        writer = side_connection(stack, flow, "target", "producer")
        wanted = flow.groups.group_filter.should_replicate_group
        remote_topics = RemoteTopics(sides.target)
        if flow.replica is not None:
            from klamm.mirror.replica.remote_topics import ReplicaTopics  # noqa: PLC0415 - for this mode only

            remote_topics = ReplicaTopics(flow, sides.target, flow.replica.node_id)
        yield GroupControl(
            flow,
            flow.groups,
            sides,
            checkpoints=CheckpointStore(sides.target_reader, writer, flow.groups.checkpoints_topic, wanted=wanted),
            status=status,
            place=remote_topics.place,
            progress=progress if flow.preserves_offsets else None,
        )
