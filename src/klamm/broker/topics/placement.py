"""Placement of partitions and replicas on broker ids: pure decisions with Kafka's checks and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    PolicyViolationError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

UNSET: Final = -1
"""Wire value that selects the broker's default."""
MAX_PARTITIONS_PER_REQUEST: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The replicas of a new topic."""

    partitions: tuple[tuple[int, ...], ...]
    is_manual: bool
    """Whether the request assigned the broker ids."""

    @property
    def replication_factor(self) -> int:
        """Number of replicas of the first partition."""
        return len(self.partitions[0])


def check_request_size(partitions: int) -> None:
    """Reject a request that would create too many partitions.

    Raises:
        PolicyViolationError: The request's topics have 10,000 or more partitions in total.
    """
    if partitions >= MAX_PARTITIONS_PER_REQUEST:
        raise PolicyViolationError("Excessively large number of partitions per request.")


def check_growth(partitions: int) -> None:
    """Reject a request that would add too many partitions to topics.

    Raises:
        PolicyViolationError: It would add more than 10,000 in total.
    """
    if partitions > MAX_PARTITIONS_PER_REQUEST:
        raise PolicyViolationError("Excessively large number of additional partitions per request.")


def place_new_topic(
    *,
    num_partitions: int,
    replication_factor: int,
    assignments: Mapping[int, Sequence[int]] | None,
    default_num_partitions: int,
    default_replication_factor: int,
    node_ids: Sequence[int],
    first: int,
    cordoned: Collection[int] = (),
) -> Placement:
    """Decide the replicas of a new topic.

    Args:
        num_partitions: Requested number of partitions, -1 for the default.
        replication_factor: Requested number of replicas, -1 for the default.
        assignments: Requested broker ids by partition; None to let the broker choose.
        default_num_partitions: ``num.partitions``.
        default_replication_factor: ``default.replication.factor``.
        node_ids: All broker ids.
        first: Index of the first partition's leader in ``node_ids`` without the cordoned ones.
        cordoned: Broker ids that get no new partitions (``cordoned.log.dirs``).

    Raises:
        InvalidRequestError: Both numbers and assignments are given.
        InvalidPartitionsError: The number of partitions is out of range.
        InvalidReplicationFactorError: More replicas than brokers, or fewer than one.
        InvalidReplicaAssignmentError: The assignment is inconsistent.
        PolicyViolationError: More partitions than one request may create.
    """
    if assignments is not None:
        return _place_manually(num_partitions, replication_factor, assignments, node_ids, cordoned)
    if replication_factor < UNSET or replication_factor == 0:
        raise InvalidReplicationFactorError("Replication factor must be larger than 0, or -1 to use the default value.")
    if num_partitions < UNSET or num_partitions == 0:
        raise InvalidPartitionsError("Number of partitions was set to an invalid non-positive value.")
    count = default_num_partitions if num_partitions == UNSET else num_partitions
    replicas = default_replication_factor if replication_factor == UNSET else replication_factor
    check_request_size(count)
    open_ids = _open_ids(node_ids, cordoned, replicas)
    return Placement(partitions=place(count, replicas, node_ids=open_ids, first=first % len(open_ids)), is_manual=False)


def _open_ids(node_ids: Sequence[int], cordoned: Collection[int], replicas: int) -> Sequence[int]:
    """Return the broker ids that take new partitions.

    Raises:
        InvalidReplicationFactorError: There are fewer than ``replicas``.
    """
    open_ids = [node_id for node_id in node_ids if node_id not in cordoned]
    failed = f"Unable to replicate the partition {replicas} time(s):"
    if not open_ids:
        raise InvalidReplicationFactorError(
            f"{failed} All brokers are currently fenced, or have all their log directories cordoned."
        )
    if replicas > len(open_ids):
        raise InvalidReplicationFactorError(
            f"{failed} The target replication factor of {replicas} cannot be reached because only {len(open_ids)}"
            " broker(s) are registered or some brokers have all their log directories cordoned."
        )
    return open_ids


def place(count: int, replicas: int, *, node_ids: Sequence[int], first: int) -> tuple[tuple[int, ...], ...]:
    """Assign ``count`` partitions to the brokers round-robin, each to ``replicas`` consecutive brokers."""
    brokers = len(node_ids)
    return tuple(
        tuple(node_ids[(first + partition + replica) % brokers] for replica in range(replicas))
        for partition in range(count)
    )


def place_added_partitions(
    *,
    topic: str,
    current: Sequence[Sequence[int]],
    count: int,
    assignments: Sequence[Sequence[int]] | None,
    node_ids: Sequence[int],
    cordoned: Collection[int] = (),
) -> tuple[tuple[int, ...], ...]:
    """Decide the replicas of new partitions that bring a topic to ``count`` partitions.

    Raises:
        InvalidPartitionsError: ``count`` is not larger than the current number.
        InvalidReplicationFactorError: Too many broker ids are cordoned (``cordoned.log.dirs``).
        InvalidReplicaAssignmentError: The assignment is inconsistent.
    """
    if count == len(current):
        raise InvalidPartitionsError(f"Topic already has {count} partition(s).")
    if count < len(current):
        raise InvalidPartitionsError(
            f"The topic {topic} currently has {len(current)} partition(s); {count} would not be an increase."
        )
    additional = count - len(current)
    check_growth(additional)
    replicas = len(current[0])
    if assignments is None:
        open_ids = _open_ids(node_ids, cordoned, replicas)
        first = (open_ids.index(current[0][0]) if current[0][0] in open_ids else 0) + len(current)
        return place(additional, replicas, node_ids=open_ids, first=first)
    if len(assignments) != additional:
        raise InvalidReplicaAssignmentError(
            f"Attempted to add {additional} additional partition(s), but only {len(assignments)} assignment(s) were"
            " specified."
        )
    for brokers in assignments:
        check_assignment(brokers, node_ids, replicas, cordoned=cordoned)
    return tuple(tuple(brokers) for brokers in assignments)


def _place_manually(
    num_partitions: int,
    replication_factor: int,
    assignments: Mapping[int, Sequence[int]],
    node_ids: Sequence[int],
    cordoned: Collection[int],
) -> Placement:
    if replication_factor != UNSET:
        raise InvalidRequestError(
            "A manual partition assignment was specified, but replication factor was not set to -1."
        )
    if num_partitions != UNSET:
        raise InvalidRequestError("A manual partition assignment was specified, but numPartitions was not set to -1.")
    replicas: int | None = None
    for brokers in assignments.values():
        check_assignment(brokers, node_ids, replicas, cordoned=cordoned)
        replicas = len(brokers)
    if sorted(assignments) != list(range(len(assignments))):
        raise InvalidReplicaAssignmentError("partitions should be a consecutive 0-based integer sequence")
    return Placement(partitions=tuple(tuple(assignments[index]) for index in range(len(assignments))), is_manual=True)


def check_assignment(
    brokers: Sequence[int], node_ids: Sequence[int], replicas: int | None = None, *, cordoned: Collection[int] = ()
) -> None:
    """Check the requested replicas of one partition. ``replicas`` is the required number of them; None accepts any.

    Raises:
        InvalidReplicaAssignmentError: No replica, an unknown, cordoned or repeated broker id, or a wrong number of
            replicas.
    """
    if not brokers:
        raise InvalidReplicaAssignmentError("The manual partition assignment includes an empty replica list.")
    previous: int | None = None
    for broker in sorted(brokers):
        if broker not in node_ids:
            raise InvalidReplicaAssignmentError(
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            )
        if broker in cordoned:
            raise InvalidReplicaAssignmentError(
                f"The manual partition assignment includes broker {broker}, but all its log directories are cordoned."
            )
        if broker == previous:
            raise InvalidReplicaAssignmentError(
                f"The manual partition assignment includes the broker {broker} more than once."
            )
        previous = broker
    if replicas is not None and len(brokers) != replicas:
        raise InvalidReplicaAssignmentError(
            f"The manual partition assignment includes a partition with {len(brokers)} replica(s), but this is not"
            f" consistent with previous partitions, which have {replicas} replica(s)."
        )
