"""The stored form of a classic group: readable JSON of exactly the state that survives a restart.

Parked requests and deadlines are not stored, and most changes are stored in the states STABLE and EMPTY. As in Kafka, a
group has its last completed generation after a restart. Members with a later generation have to join again.

A group that was stored during a rebalance starts the rebalance again after a restart. Otherwise partitions of a member
that has left, and is not in the stored form, would stay without an owner.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

from klamm.broker.groups.classic.group import ClassicGroup
from klamm.broker.groups.classic.members import Member
from klamm.broker.groups.classic.model import GroupState
from klamm.storage.errors import DAMAGED_VALUE

if TYPE_CHECKING:
    from klamm.broker.groups.classic.model import GroupLimits, Moment


def to_payload(group: ClassicGroup) -> bytes:
    """Return the stored form of a group, without parked requests and deadlines; ``from_payload`` reverses it."""
    facts = {
        "type": "classic",
        "generation_id": group.generation_id,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "leader": group.members.leader_id,
        "state_since_ms": group.state_since_ms,
        "is_rebalancing": group.state in {GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE},
        "members": [_member_to_facts(member) for member in group.members],
    }
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()


def from_payload(group_id: str, payload: bytes, limits: GroupLimits, now: Moment) -> ClassicGroup:
    """Return the group of a stored form. The members' sessions start now, regardless of the broker's downtime.

    A group with more members than ``group.max.size``, which may be lower than before, rebalances: surplus members are
    rejected when they join again.

    Raises:
        ValueError: The payload is damaged or of another format.
    """
    try:
        facts = json.loads(payload)
        group = ClassicGroup(group_id, limits, now)
        for member in facts["members"]:
            group.members.add(_member_from_facts(member))
        group.generation_id = facts["generation_id"]
        group.protocol_type = facts["protocol_type"]
        group.protocol_name = facts["protocol_name"]
        group.members.leader_id = facts["leader"]
        group.state = GroupState.STABLE if group.members else GroupState.EMPTY
        group.state_since_ms = facts["state_since_ms"]
        is_rebalancing = facts.get("is_rebalancing", False)  # absent in groups of earlier versions
    except DAMAGED_VALUE as error:
        raise ValueError(f"Stored group {group_id!r} cannot be read: {error!r}") from error
    group.resume(now)
    if is_rebalancing or len(group.members) > limits.max_size:
        group.rebalance(now)
    return group


def _member_to_facts(member: Member) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": member.session_timeout_ms,
        "requested_session_timeout_ms": member.requested_session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "protocols": [[name, b64encode(metadata).decode("ascii")] for name, metadata in member.protocols],
        "assignment": b64encode(member.assignment).decode("ascii"),
    }


def _member_from_facts(facts: dict[str, Any]) -> Member:
    return Member(
        member_id=facts["member_id"],
        group_instance_id=facts["group_instance_id"],
        client_id=facts["client_id"],
        client_host=facts["client_host"],
        session_timeout_ms=facts["session_timeout_ms"],
        # absent in groups of earlier versions, which enforced nothing
        requested_session_timeout_ms=facts.get("requested_session_timeout_ms", facts["session_timeout_ms"]),
        rebalance_timeout_ms=facts["rebalance_timeout_ms"],
        protocols=tuple((name, b64decode(metadata)) for name, metadata in facts["protocols"]),
        assignment=b64decode(facts["assignment"]),
    )
