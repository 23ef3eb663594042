"""Delivery settings of a flow: at least once, or exactly once with transactions on the target."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from klamm.mirror.settings import keys
from klamm.mirror.settings.keys import IsolationLevel
from klamm.properties import SettingsError, parse_int

if TYPE_CHECKING:
    from klamm.mirror.settings.clients import ClientProperties
    from klamm.mirror.settings.key_reader import KeyReader

_OWN: Final = "klamm.exactly.once"
_SHARDS: Final = "klamm.exactly.once.shards"
_SUPPORT_OF_WORKER: Final = "exactly.once.source.support"
_SUPPORT_OF_CONNECTOR: Final = "exactly.once.support"
_BOUNDARY: Final = "transaction.boundary"
_BOUNDARY_MS: Final = "transaction.boundary.interval.ms"
_DEFAULT_SHARDS: Final = 4
"""Default number of shards. Each transactional id costs the target's brokers work in every round of transactions; these
are enough for several hundred MB/s.
"""
_DEFAULT_INTERVAL_MS: Final = 200
_SHORTEST_MS: Final = 20


class WorkerSupport(StrEnum):
    """Values of ``exactly.once.source.support`` (KIP-618)."""

    DISABLED = "disabled"
    PREPARING = "preparing"
    ENABLED = "enabled"


class ConnectorSupport(StrEnum):
    """Values of ``exactly.once.support`` (KIP-618)."""

    REQUESTED = "requested"
    REQUIRED = "required"


class Boundary(StrEnum):
    """Values of ``transaction.boundary`` that the mirror supports (KIP-618)."""

    POLL = "poll"
    INTERVAL = "interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnce:
    """Transaction settings of a flow."""

    id_prefix: str
    """Prefix of the transactional ids."""
    shards: int
    interval: timedelta
    """Longest time for which a transaction accepts records."""
    shortest: timedelta
    """Time after which a transaction is committed if it holds all known source records."""
    timeout: timedelta
    """Time after which the target aborts an open transaction (the producer's ``transaction.timeout.ms``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Delivery guarantee and isolation level of a flow."""

    exactly_once: ExactlyOnce | None
    """Transaction settings. None: at least once."""
    isolation_level: IsolationLevel
    warnings: tuple[str, ...] = ()


def parse_delivery(
    reader: KeyReader, source_alias: str, consumer: ClientProperties, producer: ClientProperties
) -> Delivery:
    """Read MirrorMaker's keys (KIP-618) and ``klamm.exactly.once``, which replaces all of them.

    Raises:
        SettingsError: A value is wrong, or exactly once is required of a flow that reads uncommitted records.
    """
    given = consumer.get("isolation.level")
    isolation_key = consumer.origins.get("isolation.level", f"{source_alias}.consumer.isolation.level")
    isolation = IsolationLevel.READ_UNCOMMITTED
    if given is not None:
        isolation = keys.parse_choice(isolation_key, given.strip(), IsolationLevel)
    own = reader.boolean(_OWN, False)
    support = _choice(reader, _SUPPORT_OF_WORKER, WorkerSupport.DISABLED, worker=True)
    required = _choice(reader, _SUPPORT_OF_CONNECTOR, ConnectorSupport.REQUESTED) is ConnectorSupport.REQUIRED
    if own and given is None:
        isolation = IsolationLevel.READ_COMMITTED
    _check(own=own, required=required, support=support, isolation=isolation, isolation_key=isolation_key)
    exactly_once = _exactly_once(
        reader, source_alias, producer
    )  # also if exactly once is off, so that wrong values are always reported
    if isolation is IsolationLevel.READ_COMMITTED and (own or support is WorkerSupport.ENABLED):
        _check_times(exactly_once)
        return Delivery(exactly_once=exactly_once, isolation_level=isolation)
    warnings = []
    if support is WorkerSupport.ENABLED:
        warnings.append(
            f"{_SUPPORT_OF_WORKER}=enabled is UNSUPPORTED with {isolation_key}={isolation}, delivery is at least once: "
            f"set {isolation_key}=read_committed"
        )
    elif support is WorkerSupport.PREPARING:
        warnings.append(f"{_SUPPORT_OF_WORKER}=preparing: delivery is at least once until it is enabled")
    return Delivery(exactly_once=None, isolation_level=isolation, warnings=tuple(warnings))


def _choice(reader: KeyReader, key: str, default: keys.Choice, *, worker: bool = False) -> keys.Choice:
    # Connect ignores the case of these values.
    found = reader.find(key, worker=worker)
    return keys.parse_choice(found[0], found[1].lower(), type(default)) if found else default


def _check(*, own: bool, required: bool, support: WorkerSupport, isolation: IsolationLevel, isolation_key: str) -> None:
    if (own or required) and isolation is not IsolationLevel.READ_COMMITTED:
        asked = f"{_OWN}=true" if own else f"{_SUPPORT_OF_CONNECTOR}=required"
        raise SettingsError(
            f"{asked} with {isolation_key}={isolation}: expected {isolation_key}=read_committed; otherwise records of "
            "aborted and open transactions would be mirrored"
        )
    if required and not own and support is not WorkerSupport.ENABLED:
        raise SettingsError(
            f"{_SUPPORT_OF_CONNECTOR}=required with {_SUPPORT_OF_WORKER}={support}: expected "
            f"{_SUPPORT_OF_WORKER}=enabled"
        )


def _exactly_once(reader: KeyReader, source_alias: str, producer: ClientProperties) -> ExactlyOnce:
    interval_ms, shortest_ms = _DEFAULT_INTERVAL_MS, _SHORTEST_MS
    boundary = _choice(reader, _BOUNDARY, Boundary.POLL)
    if boundary is Boundary.INTERVAL:
        interval_ms = shortest_ms = reader.integer(_BOUNDARY_MS, interval_ms, at_least=1)
    key = "transaction.timeout.ms"
    timeout_ms = parse_int(producer.origins.get(key, key), producer.get(key, "60000"), at_least=1)
    group = reader.text("group.id", f"{source_alias}-mm2", worker=True)
    return ExactlyOnce(
        id_prefix=f"{group}-klamm-{source_alias}",
        shards=reader.integer(_SHARDS, _DEFAULT_SHARDS, at_least=1),
        interval=timedelta(milliseconds=interval_ms),
        shortest=timedelta(milliseconds=shortest_ms),
        timeout=timedelta(milliseconds=timeout_ms),
    )


def _check_times(exactly_once: ExactlyOnce) -> None:
    interval, timeout = exactly_once.interval, exactly_once.timeout
    if timeout <= interval:
        raise SettingsError(
            f"{_BOUNDARY_MS}={interval // timedelta(milliseconds=1)}: expected less than the producer's "
            f"transaction.timeout.ms={timeout // timedelta(milliseconds=1)}"
        )
