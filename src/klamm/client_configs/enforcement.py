"""Enforcement of client configs (KIP-649) by the server, for clients that do not request their configs.

A server (broker or gateway) can apply some configs itself, because it sees or controls what they affect. Enforcement is
off by default. ``client.config.enforcement`` switches it on for all clients. The config ``enforcement`` of an entity
(``on`` or ``off``) outranks it for the clients of that entity. As for every client config, the ``<user, client-id>``
outranks the ``<user>``, which outranks the default user.

=========================  ===========================================================================================
Config                     Effect
=========================  ===========================================================================================
``acks``                   A Produce request with lower acks is treated as one with the resolved acks. Higher acks
                           stay as they are. The response is the one that the client expects: none for acks=0.
``session.timeout.ms``     A group member gets the resolved session timeout in place of its own (classic protocol) or
                           of the group's (consumer protocol, KIP-848), within the broker's limits.
``heartbeat.interval.ms``  A member of the consumer protocol (KIP-848) gets the resolved interval with its next
                           heartbeat. Members of the classic protocol choose their interval themselves.
=========================  ===========================================================================================

Clients that follow their configs by themselves are treated in the same way. For them enforcement changes nothing,
except until their next request for configs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from klamm.client_configs.definitions import ACKS, ENFORCEMENT, HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS, Switch
from klamm.client_configs.kinds import GroupProtocol
from klamm.client_configs.resolution import merge_layers
from klamm.client_configs.rollout import rollout_key
from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.client_configs.definitions import BrokerLimits
    from klamm.client_configs.entities import ClientConfigEntity

ALL_REPLICAS: Final = -1
_STRENGTHS: Final = {0: 0, 1: 1, ALL_REPLICAS: 2}
_ACKS_BY_NAME: Final = {"0": 0, "1": 1, "-1": ALL_REPLICAS, "all": ALL_REPLICAS}
_TOLERANCE: Final = 1.5
"""Factor by which a heartbeat interval may be off, because it is the measured time between two heartbeats."""


class Compliance(StrEnum):
    """Way in which a config that is set for a client reaches it."""

    FOLLOWS = "follows"
    """The client requests its configs and supports this one."""
    ENFORCED = "enforced"
    """The client does not support the config, and the server enforces it."""
    CANNOT = "cannot"
    """The client does not support the config, and the server cannot enforce it for this client."""
    OFF = "off"
    """The client does not support the config, and enforcement is off for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforced:
    """Values that a server enforces for one client. None means that the client's own value applies."""

    is_on: bool = False
    """Whether enforcement is on for the client."""
    acks: int | None = None
    """0, 1, or -1 for all replicas."""
    session_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None
    session_protocols: frozenset[GroupProtocol] = frozenset(GroupProtocol)
    """Group protocols whose session timeout the server can enforce. A gateway does not count the time of sessions."""


NOTHING_ENFORCED: Final = Enforced()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingLimits:
    """Broker settings that limit the timings of members of consumer groups (KIP-848)."""

    min_session_timeout_ms: int = 45_000
    """``group.consumer.min.session.timeout.ms``"""
    max_session_timeout_ms: int = 60_000
    """``group.consumer.max.session.timeout.ms``"""
    min_heartbeat_interval_ms: int = 5_000
    """``group.consumer.min.heartbeat.interval.ms``"""
    max_heartbeat_interval_ms: int = 15_000
    """``group.consumer.max.heartbeat.interval.ms``"""


def enforced_values(
    configs: Mapping[ClientConfigEntity, Mapping[str, str]],
    application: ClientConfigEntity,
    *,
    is_on: bool,
    limits: BrokerLimits,
    session_protocols: frozenset[GroupProtocol] = frozenset(GroupProtocol),
) -> Enforced:
    """Return the values to enforce for a client.

    Args:
        configs: Configs of all entities.
        application: The client's ``<user, client-id>``.
        is_on: Whether ``client.config.enforcement`` is on. The switch of an entity outranks it.
        limits: Limits for session timeouts. They may have changed since the config was set.
        session_protocols: Group protocols whose session timeout the server can enforce.
    """
    merged = merge_layers(configs, application)
    switch = merged.get(ENFORCEMENT)
    if not (is_on if switch is None else switch == Switch.ON):
        return NOTHING_ENFORCED
    acks, session, interval = (merged.get(key) for key in (ACKS, SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS))
    return Enforced(
        is_on=True,
        acks=None if acks is None else acks_of(acks),
        session_timeout_ms=None
        if session is None
        else min(max(int(session), limits.min_session_timeout_ms), limits.max_session_timeout_ms),
        heartbeat_interval_ms=None if interval is None else int(interval),
        session_protocols=session_protocols,
    )


def held_timings(
    session_timeout_ms: int, heartbeat_interval_ms: int, enforced: Enforced, limits: TimingLimits
) -> tuple[int, int]:
    """Return session timeout and heartbeat interval of a member of a consumer group (KIP-848).

    An enforced interval stays below the session timeout, as Kafka requires of the group's configs.

    Args:
        session_timeout_ms: Session timeout of the group.
        heartbeat_interval_ms: Heartbeat interval of the group.
        enforced: Values that are enforced for the member's client.
        limits: Limits for enforced values.
    """
    if enforced.session_timeout_ms is not None:
        least, most = limits.min_session_timeout_ms, limits.max_session_timeout_ms
        session_timeout_ms = min(max(enforced.session_timeout_ms, least), most)
    heartbeat_interval_ms = held_interval(heartbeat_interval_ms, enforced, limits)
    if enforced.session_timeout_ms is not None or enforced.heartbeat_interval_ms is not None:
        heartbeat_interval_ms = min(heartbeat_interval_ms, session_timeout_ms - 1)
    return session_timeout_ms, heartbeat_interval_ms


def held_interval(heartbeat_interval_ms: int, enforced: Enforced, limits: TimingLimits) -> int:
    """Return the heartbeat interval for a member of a consumer group whose session is not the server's.

    Args:
        heartbeat_interval_ms: Interval that the member would get.
        enforced: Values that are enforced for the member's client.
        limits: Limits for enforced values.
    """
    if enforced.heartbeat_interval_ms is None:
        return heartbeat_interval_ms
    least, most = limits.min_heartbeat_interval_ms, limits.max_heartbeat_interval_ms
    return min(max(enforced.heartbeat_interval_ms, least), most)


def acks_of(text: str) -> int:
    """Return the number of a valid value of ``acks``."""
    return _ACKS_BY_NAME[text]


def is_enforced_anywhere(configs: Iterable[Mapping[str, str]], *, is_on: bool) -> bool:
    """Return whether any client can have enforced values.

    Args:
        configs: Configs of each entity.
        is_on: Whether ``client.config.enforcement`` is on.
    """
    switches = (ENFORCEMENT, rollout_key(ENFORCEMENT))
    return is_on or any(name in own for own in configs for name in switches)


def held_acks(requested: int, enforced: Enforced) -> int:
    """Return the acks by which a Produce request is served: the stronger of the requested and the enforced one.

    Invalid requested acks are returned unchanged.
    """
    if enforced.acks is None or requested not in _STRENGTHS:
        return requested
    return max(requested, enforced.acks, key=_STRENGTHS.__getitem__)


def enforceable(enforced: Enforced, protocols: frozenset[GroupProtocol]) -> frozenset[str]:
    """Return the configs that the server enforces for a client if they are set; none if enforcement is off for it.

    Args:
        enforced: Values that are enforced for the client.
        protocols: Group protocols that the client uses.
    """
    if not enforced.is_on:
        return frozenset()
    return frozenset(
        {
            ACKS,
            *({SESSION_TIMEOUT_MS} if protocols & enforced.session_protocols else ()),
            *({HEARTBEAT_INTERVAL_MS} if GroupProtocol.CONSUMER in protocols else ()),
        }
    )


def compliance(key: str, *, is_supported: bool, enforced: Enforced, protocols: frozenset[GroupProtocol]) -> Compliance:
    """Return how a config that concerns a client reaches it.

    Args:
        key: Name of the config.
        is_supported: Whether the client registered the config.
        enforced: Values that are enforced for the client.
        protocols: Group protocols that the client uses.
    """
    if is_supported:
        return Compliance.FOLLOWS
    if not enforced.is_on:
        return Compliance.OFF
    return Compliance.ENFORCED if key in enforceable(enforced, protocols) else Compliance.CANNOT


def value_text(key: str, value: int) -> str:
    """Return a reported value as it would be set."""
    return "all" if key == ACKS and value == ALL_REPLICAS else str(value)


def differs(key: str, *, reported: int, wanted: str) -> bool:
    """Return whether a client reports another value than the one that is set for it."""
    if key == ACKS:
        return reported != acks_of(wanted)
    if key == HEARTBEAT_INTERVAL_MS:
        return not int(wanted) / _TOLERANCE <= reported <= int(wanted) * _TOLERANCE
    return reported != int(wanted)
