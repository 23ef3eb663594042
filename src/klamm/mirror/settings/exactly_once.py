"""Delivery settings of a flow: at least once, or exactly once with transactions on the target."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.mirror.settings import definitions
from klamm.mirror.settings.definitions import (
    BOUNDARY,
    BOUNDARY_MS,
    CONNECTOR_SUPPORT,
    EXACTLY_ONCE,
    OFFSETS,
    SHARDS,
    TASKS_MAX,
    WORKER_SUPPORT,
    Boundary,
    ConnectorSupport,
    IsolationLevel,
    Offsets,
    WorkerSupport,
)
from klamm.mirror.settings.key_reader import worker_group
from klamm.properties import SettingsError, parse_int

if TYPE_CHECKING:
    from klamm.mirror.settings.clients import ClientProperties
    from klamm.mirror.settings.key_reader import KeyReader

_SHORTEST_MS: Final = 20
_MAX_SHARDS_BY_TASKS: Final = 4
"""Enough for several hundred MB/s. ``tasks.max`` may be larger than the number of tasks that run at once."""


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
    id_prefix: str
    """Prefix of the flow's transactional ids."""
    preserves_offsets: bool = False
    """Whether records keep their offsets. They are then written once without transactions."""
    warnings: tuple[str, ...] = ()


def parse_delivery(
    reader: KeyReader, source_alias: str, consumer: ClientProperties, producer: ClientProperties
) -> Delivery:
    """Read MirrorMaker's keys (KIP-618), and ``klamm.exactly.once`` and ``klamm.offsets``, which replace all of them.

    Raises:
        SettingsError: A value is wrong, or exactly once or equal offsets are required of a flow that reads uncommitted
            records.
    """
    configured = consumer.get("isolation.level")
    isolation_key = consumer.origins.get("isolation.level", f"{source_alias}.consumer.isolation.level")
    isolation = IsolationLevel.READ_UNCOMMITTED
    if configured is not None:
        isolation = definitions.parse_choice(isolation_key, configured.strip(), IsolationLevel)
    preserves = reader.get(OFFSETS) is Offsets.PRESERVE
    own = reader.get(EXACTLY_ONCE)
    support = reader.get(WORKER_SUPPORT)
    required = reader.get(CONNECTOR_SUPPORT) is ConnectorSupport.REQUIRED
    if own and configured is None:
        isolation = IsolationLevel.READ_COMMITTED
    if not preserves:
        _check(own=own, required=required, support=support, isolation=isolation, isolation_key=isolation_key)
    exactly_once = _exactly_once(
        reader, source_alias, producer
    )  # also if exactly once is off, so that wrong values are always reported
    prefix = exactly_once.id_prefix
    if preserves:
        _check_preserve(own=own, isolation=isolation if configured is not None else None, isolation_key=isolation_key)
        return Delivery(
            exactly_once=None,
            isolation_level=IsolationLevel.READ_COMMITTED,
            id_prefix=prefix,
            preserves_offsets=True,
        )
    if isolation is IsolationLevel.READ_COMMITTED and (own or support is WorkerSupport.ENABLED):
        _check_times(exactly_once)
        return Delivery(exactly_once=exactly_once, isolation_level=isolation, id_prefix=prefix)
    warnings = []
    if support is WorkerSupport.ENABLED:
        warnings.append(
            f"{WORKER_SUPPORT.key}=enabled is UNSUPPORTED with {isolation_key}={isolation}, delivery is at least once: "
            f"set {isolation_key}=read_committed"
        )
    elif support is WorkerSupport.PREPARING:
        warnings.append(f"{WORKER_SUPPORT.key}=preparing: delivery is at least once until it is enabled")
    return Delivery(exactly_once=None, isolation_level=isolation, id_prefix=prefix, warnings=tuple(warnings))


def _check_preserve(*, own: bool, isolation: IsolationLevel | None, isolation_key: str) -> None:
    demand = f"{OFFSETS.key}={Offsets.PRESERVE}"
    if own:
        raise SettingsError(
            f"{EXACTLY_ONCE.key}=true with {demand}: expected {EXACTLY_ONCE.key}=false; records that keep their "
            "offsets are written exactly once without transactions"
        )
    if isolation is IsolationLevel.READ_UNCOMMITTED:
        raise SettingsError(
            f"{isolation_key}={isolation} with {demand}: expected read_committed; offsets of aborted records are filled"
        )


def _check(*, own: bool, required: bool, support: WorkerSupport, isolation: IsolationLevel, isolation_key: str) -> None:
    if (own or required) and isolation is not IsolationLevel.READ_COMMITTED:
        demand = f"{EXACTLY_ONCE.key}=true" if own else f"{CONNECTOR_SUPPORT.key}=required"
        raise SettingsError(
            f"{demand} with {isolation_key}={isolation}: expected {isolation_key}=read_committed; otherwise records of "
            "aborted and open transactions would be mirrored"
        )
    if required and not own and support is not WorkerSupport.ENABLED:
        raise SettingsError(
            f"{CONNECTOR_SUPPORT.key}=required with {WORKER_SUPPORT.key}={support}: expected "
            f"{WORKER_SUPPORT.key}=enabled"
        )


def _exactly_once(reader: KeyReader, source_alias: str, producer: ClientProperties) -> ExactlyOnce:
    interval_ms, shortest_ms = BOUNDARY_MS.default, _SHORTEST_MS
    boundary = reader.get(BOUNDARY)
    if boundary is Boundary.INTERVAL:
        interval_ms = shortest_ms = reader.get(BOUNDARY_MS)
    key = "transaction.timeout.ms"
    timeout_ms = parse_int(producer.origins.get(key, key), producer.get(key, "60000"), at_least=1)
    return ExactlyOnce(
        id_prefix=f"{worker_group(reader, source_alias)}-klamm-{source_alias}",
        shards=reader.get(SHARDS) or min(reader.get(TASKS_MAX) or 1, _MAX_SHARDS_BY_TASKS),
        interval=timedelta(milliseconds=interval_ms),
        shortest=timedelta(milliseconds=shortest_ms),
        timeout=timedelta(milliseconds=timeout_ms),
    )


def _check_times(exactly_once: ExactlyOnce) -> None:
    interval, timeout = exactly_once.interval, exactly_once.timeout
    if timeout <= interval:
        raise SettingsError(
            f"{BOUNDARY_MS.key}={interval // timedelta(milliseconds=1)}: expected less than the producer's "
            f"transaction.timeout.ms={timeout // timedelta(milliseconds=1)}"
        )
