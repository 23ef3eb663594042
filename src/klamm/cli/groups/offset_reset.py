"""Action ``--reset-offsets`` of ``klamm groups``."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.admin import OffsetAndMetadata, OffsetSpec, TopicPartition
from klamm.cli.arguments import searched_ms
from klamm.cli.connection import RequestError
from klamm.cli.groups.description import chosen_groups, reason
from klamm.cli.groups.partitions import in_order, parse_offsets
from klamm.cli.output import print_error, print_line, print_result
from klamm.clock import wall_clock_ms
from klamm.properties import file_error
from klamm.protocol.errors import ErrorCode, KafkaApiError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Mapping, Sequence

    from klamm.admin import AdminClient

    Offsets = Mapping[TopicPartition, int]

_UNKNOWN_OFFSET: Final = -1
_IDLE: Final = frozenset({"Empty", "Dead"})


def reset(admin: AdminClient, options: argparse.Namespace) -> int:
    """Show the new offsets of inactive groups, and set them with ``--execute``.

    Return 1 if a group is active, or if ``--from-file`` has no offsets of a group.

    Raises:
        RequestError, KafkaApiError, OSError: The action failed. With ``--execute`` the offsets that were set before are
            shown first.
    """
    group_ids = chosen_groups(admin, options)
    planned: dict[str, Offsets] = {}
    rejected: dict[str, str] = {}
    failure: Exception | None = None
    for group_id in group_ids:
        try:
            state = _state(admin, group_id)
            if state not in _IDLE:
                rejected[group_id] = (
                    f"Assignments can only be reset if the group '{group_id}' is inactive,"
                    f" but the current state is {state}."
                )
                continue
            offsets = _new_offsets(admin, group_id, options)
            if options.from_file is not None and not offsets:
                rejected[group_id] = f"No reset plan for group {group_id} found"
                continue
            planned[group_id] = offsets
            if options.execute:
                planned[group_id], failure = _commit(admin, group_id, offsets)
        except (RequestError, KafkaApiError, OSError) as error:
            failure = error
        if failure is not None:
            break
    if failure is not None:
        planned = {group_id: offsets for group_id, offsets in planned.items() if offsets and options.execute}
        if not planned:
            raise failure
    document = [
        {
            "group": group_id,
            "executed": options.execute and group_id in planned,
            "error": rejected.get(group_id),
            "partitions": [
                {"topic": partition.topic, "partition": partition.partition, "offset": planned[group_id][partition]}
                for partition in in_order(planned.get(group_id, ()))
            ],
        }
        for group_id in group_ids
    ]
    print_result(options.output, document, lambda: _lines(planned, rejected, options))
    if failure is not None:
        raise failure
    return 1 if rejected else 0


def _commit(admin: AdminClient, group_id: str, offsets: Offsets) -> tuple[Offsets, Exception | None]:
    """Set the offsets of a group. Return those that were set, and the first error."""
    commits = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
    errors = {
        partition: outcome.exception()
        for partition, outcome in admin.alter_group_offsets(group_id, commits).values().items()
    }
    done = {partition: offset for partition, offset in offsets.items() if errors[partition] is None}
    failed = (error for error in errors.values() if isinstance(error, Exception))
    return done, next(failed, None)


def _state(admin: AdminClient, group_id: str) -> str:
    try:
        return admin.describe_groups([group_id]).all().result()[group_id].state
    except KafkaApiError as error:
        if error.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return "Dead"


def _lines(planned: Mapping[str, Offsets], rejected: Mapping[str, str], options: argparse.Namespace) -> list[str]:
    errors = [line for reason in rejected.values() for line in ("", f"Error: {reason}")]
    rows = [
        (group_id, partition.topic, str(partition.partition), str(offsets[partition]))
        for group_id, offsets in sorted(planned.items())
        for partition in in_order(offsets)
    ]
    if options.export:
        has_one_group = not options.all_groups and len(options.group) == 1
        return [*errors, *(_csv_line(row[1:] if has_one_group else row) for row in rows), ""]
    head = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")
    table = [
        f"{group:<30} {topic:<30} {partition:<10} {offset:<15}" for group, topic, partition, offset in (head, *rows)
    ]
    return [*errors, "", *table]


def _csv_line(cells: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()


def _new_offsets(admin: AdminClient, group_id: str, options: argparse.Namespace) -> Offsets:
    """Return the new offset of each partition.

    Raises:
        RequestError: A partition without a committed offset is shifted, or the file cannot be used.
        KafkaApiError: A topic or a partition does not exist.
    """
    if options.from_file is not None:
        return _in_range(admin, _from_file(group_id, options))
    committed = admin.list_group_offsets({group_id: None}).all().result()[group_id]
    partitions = _partitions(admin, committed, options)
    if options.to_offset is not None:
        return _in_range(admin, dict.fromkeys(partitions, options.to_offset))
    if options.shift_by is not None:
        return _in_range(admin, {each: _shifted(committed, each, options.shift_by) for each in partitions})
    if options.to_current:
        missing = [partition for partition in partitions if partition not in committed]
        present = {partition: committed[partition].offset for partition in partitions if partition in committed}
        return present | _listed(admin, missing, OffsetSpec.LATEST)
    if options.to_earliest or options.to_latest:
        return _listed(admin, partitions, OffsetSpec.EARLIEST if options.to_earliest else OffsetSpec.LATEST)
    now_ms = wall_clock_ms()
    at_ms = now_ms - options.by_duration if options.by_duration is not None else options.to_datetime
    return _by_time(
        admin, partitions, searched_ms(at_ms), warn=print_error if options.output != "human" else print_line
    )


def _shifted(committed: Mapping[TopicPartition, OffsetAndMetadata], partition: TopicPartition, shift: int) -> int:
    if partition not in committed:
        name = partition.name
        raise RequestError(f"Cannot shift offset for partition {name} since there is no current committed offset")
    return committed[partition].offset + shift


def _from_file(group_id: str, options: argparse.Namespace) -> Offsets:
    """Return the offsets of a group in the file; empty if it has no lines for the group.

    Raises:
        RequestError: The file cannot be read, or it has an invalid line.
    """
    path = Path(options.from_file)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some programs write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"Unable to read file {path}: {file_error(error)}") from error
    try:
        lines = parse_offsets(text, has_one_group=not options.all_groups and len(options.group) == 1)
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error
    return {TopicPartition(line.topic, line.partition): line.offset for line in lines if line.group in (None, group_id)}


def _partitions(
    admin: AdminClient, committed: Collection[TopicPartition], options: argparse.Namespace
) -> list[TopicPartition]:
    if options.all_topics:
        return in_order(committed)
    named = {TopicPartition(topic.name, each) for topic in options.topics for each in topic.partitions or ()}
    whole = [topic.name for topic in options.topics if topic.partitions is None]
    described = admin.describe_topics(whole).all().result()
    return in_order(
        named | {TopicPartition(name, each.partition) for name, topic in described.items() for each in topic.partitions}
    )


def _listed(admin: AdminClient, partitions: Collection[TopicPartition], spec: int) -> dict[TopicPartition, int]:
    offsets = {}
    for partition, listed in admin.list_offsets(dict.fromkeys(partitions, spec)).values().items():
        try:
            offsets[partition] = listed.result().offset
        except KafkaApiError as error:
            raise RequestError(f"{partition.name}: {reason(error)}") from error
    return offsets


def _in_range(admin: AdminClient, wanted: Offsets) -> dict[TopicPartition, int]:
    """Return the offsets, limited to the range from the first offset to the end offset of each partition."""
    first, last = (_listed(admin, wanted, spec) for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST))
    offsets = {}
    for partition, offset in wanted.items():
        allowed = min(max(offset, first[partition]), last[partition])
        if allowed != offset:
            where, limit = ("higher than latest", last) if offset > allowed else ("lower than earliest", first)
            print_error(
                f"New offset ({offset}) is {where} offset for topic partition {partition.name}."
                f" Value will be set to {limit[partition]}"
            )
        offsets[partition] = allowed
    return offsets


def _by_time(
    admin: AdminClient, partitions: Collection[TopicPartition], at_ms: int, *, warn: Callable[[str], object]
) -> dict[TopicPartition, int]:
    """Return the offsets of the first records not older than a timestamp, or the latest ones where there is none."""
    offsets = _listed(admin, partitions, at_ms)
    missing = [partition for partition in in_order(offsets) if offsets[partition] == _UNKNOWN_OFFSET]
    for partition in missing:
        warn(
            f"\nWarn: Partition {partition.partition} from topic {partition.topic} is empty."
            " Falling back to latest known offset."
        )
    return offsets | _listed(admin, missing, OffsetSpec.LATEST)
