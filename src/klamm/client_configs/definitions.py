"""Table of the client configs that can be set centrally: name, kind of client, and validator."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.client_configs.rollout import PREFIX, parse_rollout
from klamm.configs.definitions import ALLOWED_CLIENT_CONFIGS
from klamm.configs.values import JAVA_BLANKS
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidRequestError, KafkaApiError, PolicyViolationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ACKS: Final = "acks"
SESSION_TIMEOUT_MS: Final = "session.timeout.ms"
HEARTBEAT_INTERVAL_MS: Final = "heartbeat.interval.ms"
ENFORCEMENT: Final = "enforcement"
"""Switch of an entity: whether the server enforces its clients' configs. It is set like a config, and clients never
receive it. See ``enforcement``.
"""

MAX_INT: Final = 2**31 - 1
_INTEGER = re.compile(r"[+-]?0{0,1000}[0-9]{1,10}")
"""Integer as Java's clients read it, with a sign and leading zeros, but in ASCII for the other clients.

Python reads at most 4,300 digits.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Broker settings that limit client configs."""

    min_session_timeout_ms: int = 6_000
    """``group.min.session.timeout.ms``"""
    max_session_timeout_ms: int = 1_800_000
    """``group.max.session.timeout.ms``"""
    allowed_keys: frozenset[str] | None = None
    """``client.configs.allowed.keys``. None means that all keys are allowed."""


_ANY_LIMITS: Final = BrokerLimits(min_session_timeout_ms=1, max_session_timeout_ms=MAX_INT)
"""Limits for values that are set already. Those of the broker may have changed since."""


class Switch(StrEnum):
    """Values of ``enforcement`` and of ``client.config.enforcement``."""

    ON = "on"
    OFF = "off"


class ClientKind(StrEnum):
    """Kind of a client. One client id may have several kinds: an application can have producers and consumers."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfigDefinition:
    """A client config that an operator can set for running clients."""

    name: str
    kind: ClientKind
    """Kind of client that has this config."""
    doc: str
    check: Callable[[str, BrokerLimits], None]
    """Validator that raises ``InvalidRequestError`` for a value that clients cannot use."""


def check_value(name: str, value: str, limits: BrokerLimits) -> str:
    """Return the value in its stored form, without surrounding blanks.

    A staged roll-out is checked by the rules of its config.

    Raises:
        InvalidRequestError: The key is unknown, or clients cannot use the value.
        PolicyViolationError: The broker does not allow this key to be set centrally.
    """
    if name.startswith(PREFIX):
        rollout = parse_rollout(name, value)
        return str(replace(rollout, value=_check_plain(name.removeprefix(PREFIX), rollout.value, limits)))
    return _check_plain(name, value, limits)


def usable_configs(stored: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the configs of an entity that clients can use, and the reason for each of the others."""
    configs, reasons = {}, []
    for name, value in stored.items():
        try:
            configs[name] = check_value(name, value, _ANY_LIMITS)
        except KafkaApiError as error:
            reasons.append(str(error))
    return configs, reasons


def _check_plain(name: str, value: str, limits: BrokerLimits) -> str:
    definition = DEFINITIONS.get(name)
    if definition is None and name != ENFORCEMENT:
        raise InvalidRequestError(f"Invalid configuration key {name}: expected one of {', '.join(SETTABLE)}")
    if limits.allowed_keys is not None and name not in limits.allowed_keys:
        raise PolicyViolationError(
            f"{name} must not be set for clients of this cluster:"
            f" {ALLOWED_CLIENT_CONFIGS} is {', '.join(sorted(limits.allowed_keys)) or 'empty'}"
        )
    stripped = value.strip(JAVA_BLANKS)
    check = _check_switch if definition is None else definition.check
    check(stripped, limits)
    return stripped


def _check_switch(value: str, limits: BrokerLimits) -> None:
    del limits
    if value not in set(Switch):
        raise InvalidRequestError(f"Invalid value {value} for configuration {ENFORCEMENT}: expected on or off")


def _check_acks(value: str, limits: BrokerLimits) -> None:
    del limits
    if value not in {"all", "-1", "0", "1"}:
        raise InvalidRequestError(f"Invalid value {value} for configuration {ACKS}: expected one of all, -1, 0, 1")


def _check_session_timeout(value: str, limits: BrokerLimits) -> None:
    _check_int(SESSION_TIMEOUT_MS, value, limits.min_session_timeout_ms, limits.max_session_timeout_ms)


def _check_heartbeat_interval(value: str, limits: BrokerLimits) -> None:
    del limits  # not compared with the session timeout, because the two may come from different entities
    _check_int(HEARTBEAT_INTERVAL_MS, value, 1, MAX_INT)


def _check_int(name: str, value: str, lowest: int, highest: int) -> None:
    if _INTEGER.fullmatch(value) is None or not lowest <= int(value) <= highest:
        raise InvalidRequestError(
            f"Invalid value {value} for configuration {name}: expected an integer from {lowest} to {highest}"
        )


DEFINITIONS: Final[Mapping[str, ClientConfigDefinition]] = MappingProxyType(
    {
        definition.name: definition
        for definition in (
            ClientConfigDefinition(
                name=ACKS,
                kind=ClientKind.PRODUCER,
                doc="Acknowledgements that a producer waits for: all (-1), 0 or 1.",
                check=_check_acks,
            ),
            ClientConfigDefinition(
                name=SESSION_TIMEOUT_MS,
                kind=ClientKind.CONSUMER,
                doc="Time without a heartbeat after which the group removes a consumer, in milliseconds.",
                check=_check_session_timeout,
            ),
            ClientConfigDefinition(
                name=HEARTBEAT_INTERVAL_MS,
                kind=ClientKind.CONSUMER,
                doc="Interval between heartbeats of a consumer, in milliseconds.",
                check=_check_heartbeat_interval,
            ),
        )
    }
)

SETTABLE: Final = (*DEFINITIONS, ENFORCEMENT)
"""Names that can be set for an entity."""
