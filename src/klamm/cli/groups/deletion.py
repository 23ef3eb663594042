"""Actions ``--delete`` and ``--delete-offsets`` of ``klamm groups``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.admin import TopicPartition
from klamm.cli.groups.description import chosen_groups, reason_of_deletion
from klamm.cli.output import print_result
from klamm.protocol.errors import ErrorCode, KafkaApiError

if TYPE_CHECKING:
    import argparse

    from klamm.admin import AdminClient

_OF_PARTITIONS = frozenset(
    {
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


def delete_groups(admin: AdminClient, options: argparse.Namespace) -> int:
    """Delete groups. Return 1 if one of them could not be deleted."""
    group_ids = chosen_groups(admin, options)
    failed = {
        group_id: reason_of_deletion(error)
        for group_id, outcome in admin.delete_groups(group_ids).values().items()
        if (error := outcome.exception()) is not None
    }
    deleted = ", ".join(f"'{group_id}'" for group_id in group_ids if group_id not in failed)
    lines = [
        "",
        "Error: Deletion of some consumer groups failed:",
        *(f"* Group '{group_id}' could not be deleted due to: {reason}" for group_id, reason in failed.items()),
        *(["", f"These consumer groups were deleted successfully: {deleted}"] if deleted else []),
    ]
    document = [
        {"group": group_id, "deleted": group_id not in failed, "error": failed.get(group_id)} for group_id in group_ids
    ]
    done = [f"Deletion of requested consumer groups ({deleted}) was successful."]
    print_result(options.output, document, lambda: lines if failed else done)
    return 1 if failed else 0


def delete_offsets(admin: AdminClient, options: argparse.Namespace) -> int:
    """Delete committed offsets of one group. Return 1 if one of them could not be deleted."""
    group_id = options.group[0]
    partitions = [
        TopicPartition(topic.name, partition) for topic in options.topics for partition in topic.partitions or ()
    ]
    outcomes: dict[tuple[str, int | None], str | None] = {}
    whole = [topic.name for topic in options.topics if topic.partitions is None]
    for topic, described in admin.describe_topics(whole).values().items():
        if (missing := described.exception()) is not None:
            outcomes[topic, None] = reason_of_deletion(missing)
        else:
            partitions += [TopicPartition(topic, each.partition) for each in described.result().partitions]
    errors = []
    if partitions:
        for partition, outcome in admin.delete_group_offsets(group_id, partitions).values().items():
            error = outcome.exception()
            errors += [] if error is None else [error]
            outcomes[partition.topic, partition.partition] = None if error is None else reason_of_deletion(error)
    rows = sorted(outcomes.items(), key=lambda row: (row[0][0], -1 if row[0][1] is None else row[0][1]))
    document = [
        {"topic": topic, "partition": partition, "deleted": error is None, "error": error}
        for (topic, partition), error in rows
    ]
    table = [("TOPIC", "PARTITION", "STATUS")] + [
        (topic, "-" if partition is None else str(partition), "Successful" if error is None else f"Error: {error}")
        for (topic, partition), error in rows
    ]
    width = max(15, *(len(topic) for topic, _, _ in table))
    print_result(
        options.output,
        document,
        lambda: [
            *_headline(group_id, errors),
            "",
            *(f"{topic:<{width}} {partition:<10} {status:<15}" for topic, partition, status in table),
        ],
    )
    return 1 if any(error is not None for error in outcomes.values()) else 0


def _headline(group_id: str, errors: list[BaseException]) -> list[str]:
    if not errors:
        return [f"Request succeeded for deleting offsets from group {group_id}."]
    first = errors[0]
    if isinstance(first, KafkaApiError) and first.error_code in _OF_PARTITIONS:
        return ["", "Error: Encountered some partition-level error, see the follow-up details."]
    return ["", f"Error: {reason_of_deletion(first)}"]
