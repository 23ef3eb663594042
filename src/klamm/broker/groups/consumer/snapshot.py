"""The stored form of a consumer group: readable JSON of exactly the state that survives a restart.

A group with a thousand members changes with many heartbeats in a row. So the JSON of each member is kept and written
again only when that member has changed.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.consumer.membership import Resolution
from klamm.broker.groups.consumer.model import (
    NO_PARTITIONS,
    Assignment,
    ClassicTraits,
    ConsumerMember,
    MemberState,
    assignment_of,
)
from klamm.storage.errors import DAMAGED_VALUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.broker.groups.classic.model import Moment
    from klamm.broker.groups.consumer.model import ConsumerLimits

TYPE: Final = "consumer"
_START: Final = f'{{"type":"{TYPE}",'.encode()


class GroupWriter:
    """Writer of the stored forms of one consumer group, which reuses the JSON of unchanged members."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[ConsumerMember, Assignment, str]] = {}
        """Last form of each member, with the values that it was made of."""

    def payload(self, group: ConsumerGroup) -> bytes:
        """Return the stored form of a group; ``from_payload`` reverses it."""
        self._members = {member_id: self._written(group, member_id) for member_id in group.members}
        facts = {
            "type": TYPE,
            "group_epoch": group.group_epoch,
            "assignment_epoch": group.assignment_epoch,
            "topics_digest": group.topics_digest,
            "state_since_ms": group.state_since_ms,
            "regexes": {pattern: sorted(resolved.names) for pattern, resolved in group.regexes.items()},
        }
        members = ",".join(text for _, _, text in self._members.values())
        return f'{_text(facts)[:-1]},"members":[{members}]}}'.encode()

    def _written(self, group: ConsumerGroup, member_id: str) -> tuple[ConsumerMember, Assignment, str]:
        member, target = group.members[member_id], group.target.get(member_id, NO_PARTITIONS)
        entry = self._members.get(member_id)
        if entry is not None and entry[0] is member and (entry[1] is target or entry[1] == target):
            return entry
        return member, target, _text(_member_to_facts(member) | {"target": _to_facts(target)})


def is_consumer_group(payload: bytes) -> bool:
    """Return whether this is the stored form of a consumer group, not of a classic group."""
    return payload.startswith(_START)


def from_payload(group_id: str, payload: bytes, limits: ConsumerLimits, now: Moment) -> ConsumerGroup:
    """Return the group of a stored form. ``ConsumerGroup.resume`` starts the sessions of its members.

    Raises:
        ValueError: The payload is damaged or of another format.
    """
    group = ConsumerGroup(group_id, limits, now)
    try:
        facts = json.loads(payload)
        for stored in facts["members"]:
            member = _member_from_facts(stored)
            group.put(member)
            group.target[member.member_id] = _from_facts(stored["target"])
        group.group_epoch = facts["group_epoch"]
        group.assignment_epoch = facts["assignment_epoch"]
        group.topics_digest = facts["topics_digest"]
        group.state_since_ms = facts["state_since_ms"]
        for pattern, names in facts["regexes"].items():
            group.regexes[pattern] = Resolution(names=frozenset(names))
    except DAMAGED_VALUE as error:
        raise ValueError(f"Stored group {group_id!r} cannot be read: {error!r}") from error
    group.take_unsaved()
    return group


def _text(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":"))


def _to_facts(assignment: Assignment) -> dict[str, list[int]]:
    return {str(topic_id): sorted(partitions) for topic_id, partitions in assignment.items()}


def _from_facts(facts: Mapping[str, list[int]]) -> Assignment:
    return assignment_of((UUID(topic_id), partitions) for topic_id, partitions in facts.items())


def _member_to_facts(member: ConsumerMember) -> dict[str, Any]:
    traits = member.classic
    classic = (
        None
        if traits is None
        else {
            "session_timeout_ms": traits.session_timeout_ms,
            "requested_session_timeout_ms": traits.requested_session_timeout_ms,
            "protocols": [[name, b64encode(metadata).decode("ascii")] for name, metadata in traits.protocols],
        }
    )
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "topic_names": sorted(member.topic_names),
        "topic_regex": member.topic_regex,
        "server_assignor": member.server_assignor,
        "classic": classic,
        "member_epoch": member.member_epoch,
        "previous_epoch": member.previous_epoch,
        "state": member.state.value,
        "assigned": _to_facts(member.assigned),
        "pending_revocation": _to_facts(member.pending_revocation),
        "assignment_epochs": {
            str(topic_id): sorted(epochs.items()) for topic_id, epochs in member.assignment_epochs.items()
        },
    }


def _member_from_facts(facts: Mapping[str, Any]) -> ConsumerMember:
    traits = facts["classic"]
    member = ConsumerMember(
        member_id=facts["member_id"],
        instance_id=facts["instance_id"],
        rack_id=facts["rack_id"],
        client_id=facts["client_id"],
        client_host=facts["client_host"],
        rebalance_timeout_ms=facts["rebalance_timeout_ms"],
        topic_names=frozenset(facts["topic_names"]),
        topic_regex=facts["topic_regex"],
        server_assignor=facts["server_assignor"],
        member_epoch=facts["member_epoch"],
        previous_epoch=facts["previous_epoch"],
        state=MemberState(facts["state"]),
        assigned=_from_facts(facts["assigned"]),
        pending_revocation=_from_facts(facts["pending_revocation"]),
        assignment_epochs={UUID(topic_id): dict(epochs) for topic_id, epochs in facts["assignment_epochs"].items()},
    )
    if traits is None:
        return member
    protocols = tuple((name, b64decode(metadata)) for name, metadata in traits["protocols"])
    session_timeout_ms = traits["session_timeout_ms"]
    # absent in groups of earlier versions, which stored the requested session timeout alone
    requested_ms = traits.get("requested_session_timeout_ms", session_timeout_ms)
    classic = ClassicTraits(
        session_timeout_ms=session_timeout_ms, requested_session_timeout_ms=requested_ms, protocols=protocols
    )
    return replace(member, classic=classic)
