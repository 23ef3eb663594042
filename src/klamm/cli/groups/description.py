"""Actions ``--list`` and ``--describe`` of ``klamm groups``, and the texts of group errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.admin import OffsetSpec, TopicPartition
from klamm.cli import EXIT_FAILED, EXIT_OK
from klamm.cli.groups.partitions import in_order
from klamm.cli.output import print_error, print_result
from klamm.display import escaped, one_line
from klamm.kafka_client.errors import explain
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode, KafkaApiError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.admin import AdminClient, GroupDescription, GroupListing, GroupMember, Node, OffsetAndMetadata

_MISSING: Final = "-"
_WIDTH: Final = 15
_REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})


def list_groups(admin: AdminClient, options: argparse.Namespace) -> int:
    """Print the consumer groups. If some brokers do not respond, name them and return 1."""
    listed = admin.list_groups()
    known, errors = listed.valid().result(), listed.errors().result()
    if not known:
        listed.result()  # raises the error if there is one
    groups = [
        group
        for group in _of_consumers(known)
        if (not options.states or group.state in options.states)
        and (not options.types or _type(group) in options.types)
    ]
    document = [{"group": group.group_id, "type": _type(group), "state": group.state} for group in groups]
    with_type, with_state = options.type is not None, options.state is not None
    print_result(options.output, document, lambda: _listed(groups, with_type=with_type, with_state=with_state))
    for broker_id, error in errors.items():
        print_error(f"Warning: the groups of broker {broker_id} are missing: {one_line(explain(error))}")
    return EXIT_FAILED if errors else EXIT_OK


def consumer_groups(admin: AdminClient) -> list[GroupListing]:
    """Return the groups with protocol type "consumer" or without one (they never had a member), by name."""
    return _of_consumers(admin.list_groups().result())


def _of_consumers(groups: Iterable[GroupListing]) -> list[GroupListing]:
    return [group for group in groups if group.protocol_type in ("", "consumer")]


def chosen_groups(admin: AdminClient, options: argparse.Namespace) -> list[str]:
    """Return the group ids that the flags select."""
    if options.all_groups:
        return [group.group_id for group in consumer_groups(admin)]
    return list(dict.fromkeys(options.group))


def _type(group: GroupListing) -> str:
    return (group.group_type or "unknown").capitalize()


def _listed(groups: Sequence[GroupListing], *, with_type: bool, with_state: bool) -> list[str]:
    if not with_type and not with_state:
        return [group.group_id for group in groups]
    width = max([_WIDTH, *(len(group.group_id) for group in groups)]) + 10
    rows = [("GROUP", "TYPE", "STATE"), *((group.group_id, _type(group), group.state or "Unknown") for group in groups)]
    return [
        " ".join(
            [
                name.ljust(width),
                *([kind.ljust(20)] if with_type else []),
                *([state.ljust(20)] if with_state else []),
            ]
        )
        for name, kind, state in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """A partition with the committed offset of a group and the member that reads it."""

    partition: TopicPartition | None
    """None for a member without partitions."""
    committed: OffsetAndMetadata | None
    end_offset: int | None
    """Offset after the last record. None if no leader reports it."""
    member: GroupMember | None
    """None if no member reads the partition."""

    @property
    def lag(self) -> int | None:
        """Number of records after the committed offset. None if the committed offset or the end offset is unknown."""
        return None if self.committed is None or self.end_offset is None else self.end_offset - self.committed.offset

    def cells(self, group: str, *, verbose: bool) -> list[str]:
        """Return the columns of the table."""
        epoch = self.committed.leader_epoch if self.committed is not None and self.committed.leader_epoch >= 0 else None
        return [
            group,
            self.partition.topic if self.partition else _MISSING,
            _shown(self.partition.partition if self.partition else None),
            *([_shown(epoch)] if verbose else []),
            _shown(self.committed.offset if self.committed else None),
            _shown(self.end_offset),
            _shown(self.lag),
            self.member.member_id if self.member else _MISSING,
            self.member.host if self.member else _MISSING,
            self.member.client_id if self.member else _MISSING,
        ]

    def document(self) -> dict[str, Any]:
        """Return the partition for JSON or YAML output."""
        return {
            "topic": self.partition.topic if self.partition else None,
            "partition": self.partition.partition if self.partition else None,
            "committed_offset": self.committed.offset if self.committed else None,
            "leader_epoch": self.committed.leader_epoch if self.committed else None,
            "end_offset": self.end_offset,
            "lag": self.lag,
            "member_id": self.member.member_id if self.member else None,
            "host": self.member.host if self.member else None,
            "client_id": self.member.client_id if self.member else None,
        }


def describe(admin: AdminClient, options: argparse.Namespace) -> int:
    """Print offsets, members or state of groups."""
    group_ids = chosen_groups(admin, options)
    described = admin.describe_groups(group_ids).all().result()
    groups = [described[group_id] for group_id in sorted(described)]
    view = _members if options.members else _state if options.state is not None else _offsets
    documents, tables = view(admin, groups, verbose=options.verbose)
    print_result(
        options.output,
        documents,
        lambda: _tables(groups, tables, has_states=options.state is not None or options.members),
    )
    return 0


def _tables(groups: Sequence[GroupDescription], tables: Sequence[Sequence[str]], *, has_states: bool) -> list[str]:
    """Return the tables of groups one below the other; a remark about a group goes to stderr."""
    lines = []
    for group, table in zip(groups, tables, strict=True):
        if group.state == "Empty":
            print_error(f"\nConsumer group '{escaped(group.group_id)}' has no active members.")
        elif group.state in _REBALANCING:
            print_error(f"\nWarning: Consumer group '{escaped(group.group_id)}' is rebalancing.")
        if has_states or len(table) > 1:
            lines += ["", *table]
    return lines


def _offsets(
    admin: AdminClient, groups: Sequence[GroupDescription], *, verbose: bool
) -> tuple[list[dict[str, Any]], list[list[str]]]:
    committed = admin.list_group_offsets({group.group_id: None for group in groups}).all().result()
    assigned = {
        partition for group in groups for member in group.members for partition in member.assigned_partitions or ()
    }
    everything = assigned.union(*committed.values())
    ends = {
        partition: None if future.exception() else future.result().offset
        for partition, future in admin.list_offsets(dict.fromkeys(in_order(everything), OffsetSpec.LATEST))
        .values()
        .items()
    }
    rows = {group.group_id: list(lags_of(group, committed[group.group_id], ends)) for group in groups}
    documents = [
        {
            "group": group.group_id,
            "state": group.state,
            "partitions": [row.document() for row in rows[group.group_id]],
        }
        for group in groups
    ]
    head = ["GROUP", "TOPIC", "PARTITION", *(["LEADER-EPOCH"] if verbose else [])]
    head += ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"]
    widths = [_WIDTH, _WIDTH, 10, *([_WIDTH] if verbose else []), *[_WIDTH] * 5, 0]
    tables = [
        _table([head, *(row.cells(group.group_id, verbose=verbose) for row in rows[group.group_id])], widths)
        for group in groups
    ]
    return documents, tables


def lags_of(
    group: GroupDescription,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    ends: Mapping[TopicPartition, int | None],
) -> Iterable[PartitionLag]:
    """Iterate over the partitions of a group: first those of members, the busiest member first, then all others."""

    def row(partition: TopicPartition, member: GroupMember | None) -> PartitionLag:
        return PartitionLag(
            partition=partition, committed=committed.get(partition), end_offset=ends.get(partition), member=member
        )

    assigned = set()
    for member in sorted(group.members, key=lambda each: -len(each.assigned_partitions or ())):
        for partition in in_order(member.assigned_partitions or ()):
            assigned.add(partition)
            yield row(partition, member)
    for partition in in_order(set(committed) - assigned):
        yield row(partition, None)


def _members(
    admin: AdminClient, groups: Sequence[GroupDescription], *, verbose: bool
) -> tuple[list[dict[str, Any]], list[list[str]]]:
    documents = [
        {"group": group.group_id, "state": group.state, "members": [_member_document(each) for each in group.members]}
        for group in groups
    ]
    return documents, [_members_table(group, verbose=verbose) for group in groups]


def _member_document(member: GroupMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "host": member.host,
        "client_id": member.client_id,
        "member_epoch": member.member_epoch,
        "partitions": _partition_documents(member.assigned_partitions or ()),
        "target_partitions": None
        if member.target_partitions is None
        else _partition_documents(member.target_partitions),
    }


def _partition_documents(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": each.topic, "partition": each.partition} for each in in_order(partitions)]


def _members_table(group: GroupDescription, *, verbose: bool) -> list[str]:
    has_static = any(member.group_instance_id for member in group.members)
    head = ["GROUP", "CONSUMER-ID", *(["GROUP-INSTANCE-ID"] if has_static else []), "HOST", "CLIENT-ID", "#PARTITIONS"]
    widths = [_WIDTH, _WIDTH, *([17] if has_static else []), _WIDTH, _WIDTH, _WIDTH]
    if verbose:
        head += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
        widths += [_WIDTH, 20, _WIDTH, 20]
    is_migrating = verbose and {True, False} <= {member.is_upgraded for member in group.members}
    if is_migrating:
        head, widths = [*head, "UPGRADED"], [*widths, _WIDTH]
    rows = [
        [
            group.group_id,
            member.member_id,
            *([member.group_instance_id or ""] if has_static else []),
            member.host,
            member.client_id,
            str(len(member.assigned_partitions or ())),
            *(_epochs(group, member) if verbose else []),
            *([_MISSING if member.is_upgraded is None else str(member.is_upgraded).lower()] if is_migrating else []),
        ]
        for member in group.members
    ]
    return [f"{line} " for line in _table([head, *rows], widths)]


def _epochs(group: GroupDescription, member: GroupMember) -> list[str]:
    """Return the columns of KIP-848, which are empty for a classic group."""
    return [
        _shown(member.member_epoch),
        _assignment(member.assigned_partitions),
        _shown(group.target_assignment_epoch),
        _assignment(member.target_partitions),
    ]


def _assignment(partitions: Sequence[TopicPartition] | None) -> str:
    by_topic: dict[str, list[str]] = {}
    for partition in in_order(partitions or ()):
        by_topic.setdefault(partition.topic, []).append(str(partition.partition))
    return ";".join(f"{topic}:{','.join(partitions)}" for topic, partitions in by_topic.items()) or _MISSING


def _state(
    admin: AdminClient, groups: Sequence[GroupDescription], *, verbose: bool
) -> tuple[list[dict[str, Any]], list[list[str]]]:
    nodes = {node.id: node for node in admin.describe_cluster().result().nodes}
    documents = [
        {
            "group": group.group_id,
            "state": group.state,
            "coordinator": group.coordinator,
            "group_epoch": group.group_epoch,
            "target_assignment_epoch": group.target_assignment_epoch,
            "assignment_strategy": group.protocol or None,
            "members": len(group.members),
        }
        for group in groups
    ]
    head = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    widths = [_WIDTH, 25, 20, 20]
    if verbose:
        head += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        widths += [_WIDTH, 25]
    tables = [
        _table(
            [
                [*head, "#MEMBERS"],
                [
                    group.group_id,
                    _address(nodes.get(group.coordinator), group.coordinator),
                    group.protocol or _MISSING,
                    group.state,
                    *([_shown(group.group_epoch), _shown(group.target_assignment_epoch)] if verbose else []),
                    str(len(group.members)),
                ],
            ],
            [*widths, 0],
        )
        for group in groups
    ]
    return documents, tables


def _address(node: Node | None, node_id: int) -> str:
    return f"{node.host}:{node.port}  ({node_id})" if node else f"({node_id})"


def _table(rows: Sequence[Sequence[str]], least: Sequence[int]) -> list[str]:
    """Return rows with columns as wide as their widest cell and at least as given. A column of 0 is not padded."""
    safe = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(width, *(len(row[column]) for row in safe)) if width else 0 for column, width in enumerate(least)]
    return [" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in safe]


def _shown(number: int | None) -> str:
    return _MISSING if number is None else str(number)


_TEXTS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "Deleting offsets of a topic is forbidden while the consumer group is actively subscribed to it."
    ),
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
}
_UNKNOWN_GROUP: Final = "The group id does not exist."


def reason(error: BaseException) -> str:
    """Return the text of an error of a group or offset request."""
    if isinstance(error, KafkaApiError) and error.error_code in _TEXTS:
        return _TEXTS[error.error_code]
    return explain(error)


def reason_of_deletion(error: BaseException) -> str:
    """Return the text of an error from deleting a group or a committed offset."""
    if isinstance(error, KafkaApiError) and error.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return _UNKNOWN_GROUP
    return reason(error)
