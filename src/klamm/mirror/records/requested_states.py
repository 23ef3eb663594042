"""States that an operator requested for a flow and its topics, as stored in the offsets topic on the target.

RUNNING, PAUSED and STOPPED are Connect's target states of a connector (KIP-875). Connect keeps them in a topic.
The mirror has none, so they are a record with klamm's connector name in its key (see ``source_offsets``). Connect and
MirrorMaker 2 ignore it.
"""

from __future__ import annotations

import json
from dataclasses import field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.mirror.records.source_offsets import own_key, parse_own_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class RequestedState(StrEnum):
    """State that an operator requested. ``mirror.topics.control`` describes the effects."""

    RUNNING = "RUNNING"
    DEMOTED = "DEMOTED"
    """State of topics: as RUNNING, after klamm has taken the remote topic back from the brokers if they lead it."""
    PAUSED = "PAUSED"
    """No record is fetched. The partitions stay with their tasks."""
    STOPPED = "STOPPED"
    """The partitions are released, and nothing is synced."""
    PROMOTED = "PROMOTED"
    """State of topics: brokers of the target lead the remote topic, once they have what the source had."""
    FAILED_OVER = "FAILED_OVER"
    """As PROMOTED, but without the source, which is lost: the brokers lead with what they have."""

    @property
    def is_mirrored(self) -> bool:
        """Return whether the records of a topic are fetched, unless brokers of the target lead its remote topic."""
        return self in (RequestedState.RUNNING, RequestedState.DEMOTED)

    @property
    def is_promoted(self) -> bool:
        """Return whether klamm hands the topic over, and mirrors it no longer."""
        return self in (RequestedState.PROMOTED, RequestedState.FAILED_OVER)

    @property
    def is_synced(self) -> bool:
        """Return whether the configs and ACLs of a topic are synced, unless its remote topic was handed over."""
        return self is not RequestedState.STOPPED and not self.is_promoted


_STRICTNESS: Final = tuple(RequestedState)
"""States in the order of their strictness."""
_OF_TOPICS: Final = _STRICTNESS[1:]
"""States that a topic may have in the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedStates:
    """Requested states of one flow."""

    flow: RequestedState = RequestedState.RUNNING
    topics: Mapping[str, RequestedState] = field(default_factory=lambda: MappingProxyType({}))
    """States of source topics. A topic without an entry has the state of the flow."""

    def of(self, topic: str) -> RequestedState:
        """Return the state of a source topic: its own or that of the flow, whichever is stricter."""
        return max(self.flow, self.topics.get(topic, RequestedState.RUNNING), key=_STRICTNESS.index)

    def with_flow(self, state: RequestedState) -> RequestedStates:
        """Return the states after a change of the whole flow. RUNNING resumes all topics.

        Promoted topics stay so. Demoted ones, too: klamm may not have taken them back yet.
        """
        if state is not RequestedState.RUNNING:
            return replace(self, flow=state)
        kept = {topic: own for topic, own in self.topics.items() if own.is_promoted or own is RequestedState.DEMOTED}
        return RequestedStates(topics=MappingProxyType(kept))

    def with_topics(self, topics: Iterable[str], state: RequestedState) -> RequestedStates:
        """Return the states after a change of some source topics."""
        changed = {**self.topics, **dict.fromkeys(topics, state)}
        kept = {topic: own for topic, own in changed.items() if own is not RequestedState.RUNNING}
        return replace(self, topics=MappingProxyType(kept))


def key_bytes(cluster: str, flow: str) -> bytes:
    """Return the record key of the requested states of a flow. Flows from one cluster may share an offsets topic.

    Args:
        cluster: Alias of the source cluster.
        flow: Name of the flow.
    """
    return own_key({"cluster": cluster, "flow": flow, "kind": "requested states"})


def flow_of(key: bytes | None, cluster: str) -> str | None:
    """Return the flow whose requested states have this key. None: another key, or a flow from another cluster."""
    match parse_own_fields(key):
        case {"cluster": str(alias), "flow": str(flow), "kind": "requested states"} if alias == cluster:
            return flow
        case _:
            return None


def value_bytes(states: RequestedStates) -> bytes:
    """Return the record value. Connect accepts no lists in values, so topics of one state are one string."""
    document = {"flow": states.flow.value}
    for state in _OF_TOPICS:
        document[state.lower()] = ",".join(sorted(topic for topic, own in states.topics.items() if own is state))
    return json.dumps(document, separators=(",", ":")).encode()


def parse_value(value: bytes | memoryview | None) -> RequestedStates | None:
    """Return the requested states. None: a tombstone, or a damaged value."""
    try:
        match json.loads(bytes(value or b"")):
            case {"flow": str(flow), "paused": str(), "stopped": str()} as document:
                names = {state: str(document.get(state.lower(), "")).split(",") for state in _OF_TOPICS}
                topics = {name: state for state, each in names.items() for name in each if name}
                return RequestedStates(flow=RequestedState(flow), topics=MappingProxyType(topics))
    except (ValueError, RecursionError):
        pass
    return None
