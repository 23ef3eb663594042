"""Actions of ``klamm topics`` on a cluster, one function each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from klamm.admin import ConfigResource, NewPartitions, NewTopic, ResourceType, TopicPartition
from klamm.cli.arguments import INT16_MAX
from klamm.cli.connection import RequestError
from klamm.cli.impact import impact_lines, predicted, with_impact
from klamm.cli.output import override_document, override_lines, print_line, print_result
from klamm.cli.topics import description
from klamm.cli.topics.names import format_topic_id, matching, parse_assignment, parse_configs, parse_topic_id
from klamm.configs.definitions import topic_configs
from klamm.display import counted
from klamm.impact.changes import PartitionsAdded, TopicDeleted
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR
from klamm.protocol.errors import (
    ClusterAuthorizationError,
    InvalidConfigError,
    TopicAlreadyExistsError,
    UnsupportedVersionError,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.admin import AdminClient, PartitionReassignment, TopicDescription

Reassignments: TypeAlias = "Mapping[TopicPartition, PartitionReassignment]"


def create(admin: AdminClient, options: argparse.Namespace) -> None:
    """Create one topic."""
    assignment = parse_assignment(options.replica_assignment) if options.replica_assignment else {}
    configs = parse_configs(options.config or ())
    if options.output == "human" and ("." in options.topic or "_" in options.topic) and _are_sound(configs):
        print_line(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could "
            "collide. To avoid issues it is best to use either, but not both."
        )
    if options.replication_factor is not None and not 1 <= options.replication_factor <= INT16_MAX:
        raise RequestError(f"The replication factor must be between 1 and {INT16_MAX} inclusive")
    if options.partitions is not None and options.partitions < 1:
        raise RequestError("The partitions must be greater than 0")
    topic = NewTopic(
        name=options.topic,
        num_partitions=options.partitions or -1,
        replication_factor=options.replication_factor or -1,
        configs=configs,
        replicas_assignments=assignment,
    )
    try:
        made = admin.create_topics([topic], validate_only=options.validate_only).all().result()[topic.name]
    except TopicAlreadyExistsError:
        if not options.if_not_exists:
            raise
        print_result(options.output, {"topic": topic.name, "created": False, "exists": True}, list)
        return
    document = {
        "topic": made.name,
        "topic_id": format_topic_id(made.topic_id) if made.topic_id.int else None,
        "partition_count": made.num_partitions,
        "replication_factor": made.replication_factor,
        "created": not options.validate_only,
        "validate_only": options.validate_only,
        "override": override_document(made.override),
    }
    done = f"Valid: topic {made.name} would be created." if options.validate_only else f"Created topic {made.name}."
    numbers = {PARTITIONS: options.partitions, REPLICATION_FACTOR: options.replication_factor}
    requested = {**configs, **{name: str(number) for name, number in numbers.items() if number is not None}}
    print_result(options.output, document, lambda: [done, *override_lines(made.override, requested)])


def _are_sound(configs: Mapping[str, str]) -> bool:
    """Return whether the configs are valid as far as this tool can check.

    Kafka's tool prints its warning about colliding topic names only if they are.
    """
    table = topic_configs()
    try:
        for name, value in configs.items():
            table[name].parse(value)
    except (KeyError, InvalidConfigError):
        return False
    return True


def list_all(admin: AdminClient, options: argparse.Namespace) -> None:
    """Print the names of the topics."""
    names = _topics(admin, options)
    # Kafka's tool prints an empty line if there are no topics.
    print_result(options.output, list(names), lambda: list(names) or [""])


def alter(admin: AdminClient, options: argparse.Namespace) -> None:
    """Add partitions to topics."""
    assignment = parse_assignment(options.replica_assignment) if options.replica_assignment else None
    names = _existing(admin, options)
    described = admin.describe_topics(names).all().result()
    growth = {
        name: NewPartitions(
            total_count=options.partitions,
            new_assignments=None
            if assignment is None
            else tuple(assignment[partition] for partition in sorted(assignment))[len(described[name].partitions) :],
        )
        for name in names
    }
    changes = [PartitionsAdded(topic=name, total_count=options.partitions) for name in names]
    impact = predicted(admin, changes, options)
    admin.create_partitions(growth, validate_only=options.validate_only).all().result()
    document = [
        {
            "topic": name,
            "partition_count": options.partitions,
            "before": len(described[name].partitions),
            "validate_only": options.validate_only,
        }
        for name in names
    ]
    would = [f"Valid: topic {name} would grow to {counted(options.partitions, 'partition')}." for name in names]
    lines = [*(would if options.validate_only else []), *impact_lines(impact)]
    print_result(options.output, with_impact(document, impact), lambda: lines)


def delete(admin: AdminClient, options: argparse.Namespace) -> None:
    """Delete topics.

    No Kafka request validates a deletion, so ``--validate-only`` prints the topics that would be deleted.
    """
    names = _existing(admin, options)
    impact = predicted(admin, [TopicDeleted(topic=name) for name in names], options)
    if not options.validate_only:
        admin.delete_topics(names).all().result()
    document = [{"topic": name, "deleted": not options.validate_only} for name in names]
    would = [f"Topic {name} would be deleted, unless a policy or an ACL denies it." for name in names]
    lines = [*(would if options.validate_only else []), *impact_lines(impact)]
    print_result(options.output, with_impact(document, impact), lambda: lines)


def describe(admin: AdminClient, options: argparse.Namespace) -> None:
    """Describe topics, sorted by name."""
    names = _by_id(admin, options) if _wanted_id(options) else _existing(admin, options)
    topics = (
        admin.describe_topics(
            names,
            include_eligible_leaders=True,
            partition_limit=options.partition_size_limit_per_response or 2_000,
        )
        .all()
        .result()
    )
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}
    configs = admin.describe_configs(list(resources.values())).all().result()
    report = description.TopicReport(
        live_brokers={node.id for node in admin.describe_cluster().result().nodes},
        reassignments=reassignments(admin, topics.values()) or {},
        with_overrides=options.topics_with_overrides,
        under_replicated=options.under_replicated_partitions,
        unavailable=options.unavailable_partitions,
        under_min_isr=options.under_min_isr_partitions,
        at_min_isr=options.at_min_isr_partitions,
    )
    documents: list[dict[str, Any]] = []
    shown: list[str] = []
    for name in names:
        shown += description.lines(topics[name], configs[resources[name]], report)
        if (document := description.document(topics[name], configs[resources[name]], report)) is not None:
            documents.append(document)
    print_result(options.output, documents, lambda: shown, has_tabs=True)


def reassignments(admin: AdminClient, topics: Iterable[TopicDescription]) -> Reassignments | None:
    """Return the ongoing reassignments; None if the principal may not see them or the broker is older than 2.4."""
    partitions = [TopicPartition(topic.name, partition.partition) for topic in topics for partition in topic.partitions]
    try:
        return admin.list_partition_reassignments(partitions).result()
    except (UnsupportedVersionError, ClusterAuthorizationError):
        return None


def _topics(admin: AdminClient, options: argparse.Namespace) -> tuple[str, ...]:
    everything = admin.list_topics(include_internal=not options.exclude_internal).result()
    return matching(everything, options.topic, exclude_internal=options.exclude_internal)


def _existing(admin: AdminClient, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the topics that the flags select; finding none is an error unless ``--if-exists`` is given."""
    names = _topics(admin, options)
    if not names and options.topic and not options.if_exists:
        raise RequestError(f"Topic '{options.topic}' does not exist as expected")
    return names


def _wanted_id(options: argparse.Namespace) -> bool:
    return options.topic_id is not None and parse_topic_id(options.topic_id).int != 0


def _by_id(admin: AdminClient, options: argparse.Namespace) -> Sequence[str]:
    wanted = parse_topic_id(options.topic_id)
    everything = admin.list_topics(include_internal=not options.exclude_internal).result()
    names = [topic.name for topic in everything.values() if topic.topic_id == wanted]
    if not names and not options.if_exists:
        raise RequestError(f"TopicId '{format_topic_id(wanted)}' does not exist as expected")
    return names
