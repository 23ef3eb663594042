"""Text output of ``klamm mirror status``. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.display import counted
from klamm.mirror.status.report import age_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.mirror.status.report import FlowSight, MirroredTopic

_TOPICS: Final = ("TOPIC", "REMOTE TOPIC", "PARTITIONS", "MIRRORED TO", "POSITION WRITTEN", "NEWEST RECORD", "LAG")
_GROUPS: Final = ("GROUP", "TOPICS", "PARTITIONS", "NEWEST CHECKPOINT", "TO READ")
_NONE: Final = "-"
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def lines(sight: FlowSight, now_ms: int) -> list[str]:
    """Return the lines for one flow: a summary, its topics, its groups, and the list of unknown facts with reasons."""
    out = [sight.name]
    for label, text in _summary(sight, now_ms):
        out.append(f"  {label:<22}{text}")
    if sight.topics:
        out += ["", *_table([_TOPICS, *(_topic(topic, now_ms) for topic in sight.topics)])]
    if sight.groups:
        rows = [
            (
                group.group,
                ",".join(group.topics),
                f"{group.partitions}",
                ago(group.newest_checkpoint_ms, now_ms),
                _number(group.to_read),
            )
            for group in sight.groups
        ]
        out += ["", *_table([_GROUPS, *rows])]
    if sight.unknown:
        out += ["", "  Not known from here:", *(f"  - {what}" for what in sight.unknown)]
    return [*out, ""]


def _summary(sight: FlowSight, now_ms: int) -> list[tuple[str, str]]:
    data = [topic for topic in sight.topics if not topic.is_heartbeats]
    missing = sum(not topic.exists for topic in data)
    rows = [
        ("topics", f"{len(data)}" + (f", {missing} of them not on the target" if missing else "")),
        ("newest record", ago(sight.newest_record_ms, now_ms)),
        ("position written", ago(sight.position_written_ms, now_ms)),
        ("lag", _number(sight.lag)),
    ]
    rows += [
        (f"heartbeat {beat.source_alias}->{beat.target_alias}", ago(beat.timestamp, now_ms))
        for beat in sight.heartbeats
    ]
    if sight.groups is not None:
        rows.append(("groups", f"{len(sight.groups)} with checkpoints"))
    if sight.syncs is not None:
        of = f"{counted(sight.syncs.partitions, 'partition')} in {sight.syncs.topic}"
        rows.append(("offset syncs", f"{of}, newest {ago(sight.syncs.newest_ms, now_ms)}"))
    if sight.shards is not None:
        before = f", before that {','.join(map(str, sight.shards.before))}" if sight.shards.before else ""
        rows.append(("exactly once", f"{counted(sight.shards.count, 'shard')}{before}"))
    return rows


def _topic(topic: MirroredTopic, now_ms: int) -> tuple[str, ...]:
    positions = [one.next_offset for one in topic.partitions if one.next_offset is not None]
    written = [one.written_at_ms for one in topic.partitions if one.written_at_ms is not None]
    return (
        topic.topic,
        topic.remote_topic if topic.exists else f"{topic.remote_topic} (missing)",
        f"{len(topic.partitions)}",
        f"{sum(positions):,}" if positions else _NONE,
        ago(max(written, default=None), now_ms),
        ago(topic.newest_record_ms, now_ms),
        _number(topic.lag),
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _number(count: int | None) -> str:
    return "not known" if count is None else f"{count:,}"


def ago(then_ms: int | None, now_ms: int) -> str:
    """Return the time since a timestamp as text for people."""
    age = age_s(then_ms, now_ms)
    if age is None:
        return _NONE
    for seconds, unit in _UNITS:
        if age >= 2 * seconds:
            return f"{age / seconds:.0f} {unit} ago"
    return f"{age:.1f} s ago"
