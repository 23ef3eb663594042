"""Cutover of a consumer group: a last translation of its offsets to the target while it is idle on the source."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from klamm.admin import KafkaApiError
from klamm.kafka_client.errors import error_text
from klamm.lazy_dataclass import dataclass
from klamm.mirror.cluster_admin import commit_offsets, group_offsets, group_uses
from klamm.mirror.groups.plans import (
    Logs,
    accepted,
    offsets_to_commit,
    remote_topic_of,
    translate_group,
)
from klamm.mirror.records.internal_topic import TopicGoneError
from klamm.mirror.topics.config_sync import log_rejection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.admin import OffsetAndMetadata
    from klamm.mirror.cluster_admin import CommittedOffsets
    from klamm.mirror.groups.both_sides import BothSides
    from klamm.mirror.groups.plans import Translated
    from klamm.mirror.records.formats import Checkpoint
    from klamm.mirror.settings.flow import FlowSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CutoverRow:
    """Cutover of one offset of the group."""

    topic: str
    """Topic on the source; ``partition`` is its partition."""
    partition: int
    remote_topic: str
    source_offset: int
    target_offset: int | None
    """Offset at which the group resumes on the target. None: unknown."""
    lag: int | None
    """Number of source records that the group has not read. None: unknown."""
    again_at_most: int
    """Most records that the group reads again on the target."""
    reason: str = ""
    """Reason why the offset cannot be translated. Empty: it can."""
    note: str = ""
    """Additional remark for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutover:
    """Plan or result of a cutover."""

    flow: str
    group: str
    rows: tuple[CutoverRow, ...]
    problems: tuple[str, ...]
    """Reasons why the group as a whole cannot be moved now."""
    is_done: bool = False
    """Whether the offsets are committed on the target."""

    @property
    def is_ready(self) -> bool:
        """Return whether the group and all of its offsets can be moved."""
        return not self.problems and not any(row.reason for row in self.rows)


class _Look(NamedTuple):
    """State of the group at one moment."""

    offsets: CommittedOffsets
    problems: tuple[str, ...]


def cut_over(flow: FlowSettings, group: str, sides: BothSides, *, dry_run: bool) -> Cutover:
    """Translate a group's offsets and, unless it is a dry run, commit them for the group on the target.

    Nothing is committed if an offset cannot be translated, if the group has members on either side, or if its offsets
    change in between. An offset that is already further on the target stays there.

    Raises:
        ConnectionError, TimeoutError: A cluster is unavailable. Nothing was committed.
        KafkaApiError: The source denied listing the offsets, or the target denied listing its own.
    """
    before = _look(flow, group, sides)
    # Without offset syncs, each row reports that nothing was mirrored yet.
    with contextlib.suppress(TopicGoneError):
        sides.syncs.refresh()
    logs = sides.logs(flow, [before.offsets])
    translated = translate_group(flow, group, before.offsets, sides.syncs, logs)
    current = group_offsets(sides.target, [group])[group]
    have: CommittedOffsets = {} if isinstance(current, KafkaApiError) else current
    rows = tuple(_row(flow, each, before.offsets[each.topic, each.partition], logs, have) for each in translated)
    plan = Cutover(flow=flow.name, group=group, rows=rows, problems=before.problems)
    if dry_run or not plan.is_ready:
        return plan
    after = _look(flow, group, sides)
    if after != before:
        moved = ("its offsets or members changed at the same time: try again",)
        return replace(plan, problems=after.problems or moved)
    return _write(plan, flow, sides, [each.checkpoint for each in translated if each.checkpoint is not None])


def _look(flow: FlowSettings, group: str, sides: BothSides) -> _Look:
    problems = []
    for admin, alias in ((sides.source, flow.source.alias), (sides.target, flow.target.alias)):
        state = group_uses(admin, [group])[group]
        if isinstance(state, KafkaApiError):
            problems.append(f"it cannot be described on cluster {alias}: {error_text(state)}")
        elif not state.is_idle:
            problems.append(f"it has {state.members} on cluster {alias}: stop its consumers first")
    source_offsets = group_offsets(sides.source, [group])[group]
    if isinstance(source_offsets, KafkaApiError):
        log_rejection(source_offsets, f"list offsets for consumer group {group} on cluster {flow.source.alias}")
        raise source_offsets
    offsets = accepted(flow, source_offsets)
    if not offsets:
        problems.append(f"it has no offsets on cluster {flow.source.alias} on topics that {flow.name} mirrors")
    return _Look(offsets, tuple(problems))


def _row(
    flow: FlowSettings,
    translated: Translated,
    committed: OffsetAndMetadata,
    logs: Logs,
    have: CommittedOffsets,
) -> CutoverRow:
    where = (translated.topic, translated.partition)
    remote = remote_topic_of(flow, translated.topic)
    target_offset = None if translated.checkpoint is None else translated.checkpoint.downstream_offset
    now = have.get((remote, translated.partition))
    end = logs.target[remote, translated.partition].end if target_offset is not None else -1
    further = target_offset is not None and now is not None and target_offset < now.offset <= end
    bounds = logs.source.get(where)
    is_handed_over = target_offset is not None and where in logs.handed_over
    return CutoverRow(
        topic=translated.topic,
        partition=translated.partition,
        remote_topic=remote,
        source_offset=committed.offset,
        target_offset=target_offset,
        lag=None if bounds is None else max(0, bounds.end - max(bounds.first, committed.offset)),
        again_at_most=translated.again_at_most,
        reason=translated.reason,
        note=_note(
            translated.again_at_most,
            stays_at=now.offset if further and now is not None else None,
            source_only=committed.offset - (target_offset or 0) if is_handed_over else 0,
        ),
    )


def _note(again_at_most: int, *, stays_at: int | None, source_only: int) -> str:
    if stays_at is not None:
        return f"stays at {stays_at}, where it is already"
    if source_only:
        return f"its last {source_only} offsets are on the source alone: they came after the promotion"
    return "try again when the mirror has caught up, if it is behind" if again_at_most else ""


def _write(plan: Cutover, flow: FlowSettings, sides: BothSides, checkpoints: Sequence[Checkpoint]) -> Cutover:
    current = group_offsets(sides.target, [plan.group])[plan.group]
    if isinstance(current, KafkaApiError):
        raise current
    bounds = sides.target_reader.log_bounds([(each.topic, each.partition) for each in checkpoints])
    if absent := [
        f"{each.topic}-{each.partition}" for each in checkpoints if (each.topic, each.partition) not in bounds
    ]:
        return replace(plan, problems=(f"{', '.join(absent)} has no leader on cluster {flow.target.alias}: try again",))
    due = offsets_to_commit(checkpoints, current, bounds)
    outcomes = commit_offsets(sides.target, {plan.group: due})[plan.group]
    rejected = {at: why for at, why in outcomes.items() if why is not None}
    on_target = f"on cluster {flow.target.alias}"
    problems = tuple(
        f"{topic}-{at} was rejected {on_target}: {error_text(why)}" for (topic, at), why in rejected.items()
    )
    return replace(plan, problems=problems, is_done=not problems)
