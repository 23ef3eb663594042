"""aiokafka's clients with configs that an operator can change while they run (KIP-649).

``klamm.clients.aio.AIOKafkaProducer`` and ``AIOKafkaConsumer`` replace aiokafka's classes. They need
``pip install klamm[aiokafka]``. All changes take effect in place; a thread of its own requests the configs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from klamm.client_configs.definitions import ACKS, HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from klamm.clients.dynamic_config import (
    ConfigUpdate,
    DynamicConfigs,
    Values,
    normalise_consumer,
    normalise_producer,
    notify,
)
from klamm.clients.own_connection import OwnConnection
from klamm.extras import require_extra

try:
    import aiokafka  # type: ignore[import-untyped]
except ModuleNotFoundError:
    require_extra("aiokafka", feature="klamm.clients.aio")
    raise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["AIOKafkaConsumer", "AIOKafkaProducer", "ConfigUpdate"]

logger = logging.getLogger(__name__)

SOFTWARE: Final = "klamm-aiokafka"
OnChange: TypeAlias = "Callable[[ConfigUpdate], None] | None"

_ACKS_BY_WIRE: Final = {-1: "all", 0: "0", 1: "1"}
_WIRE_BY_ACKS: Final = {value: wire for wire, value in _ACKS_BY_WIRE.items()}
_CONNECTION: Final = (
    "bootstrap_servers",
    "security_protocol",
    "ssl_context",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
)
_DEFAULT_CONNECTION: Final = {"bootstrap_servers": "localhost"}
_DEFAULT_MAX_AGE_MS: Final = 300_000
_DEFAULT_BACKOFF_MS: Final = 100


def watch_rejoins(coordinator: Any) -> None:
    """Make a coordinator join once more and restore what aiokafka discards.

    aiokafka ignores a request to join while a join is in progress, so a session timeout that changes at that moment
    would never reach the broker. A leader also assumes that the group takes every assignment that it computes. If it
    joins with a changed session timeout, the group does not rebalance and keeps the earlier assignment, without
    partitions that were added since. aiokafka also starts every assignment from the committed offsets. Within one
    generation no other consumer can have owned the partitions, so positions and pauses remain valid. After a rebalance
    the committed offsets count, as always.

    Args:
        coordinator: aiokafka's ``GroupCoordinator`` of a started consumer.
    """
    join, perform_assignment = coordinator._do_rejoin_group, coordinator._perform_assignment
    subscription = coordinator._subscription
    assign = subscription.assign_from_subscribed
    generation = coordinator.generation
    computed = in_use = coordinator._metadata_snapshot
    """Partition counts of the latest assignment that the leader has computed, and of the one that the group uses."""

    async def compute(response: Any) -> Any:
        nonlocal computed
        assignments = await perform_assignment(response)
        computed = coordinator._metadata_snapshot
        return assignments

    async def join_until_current(wanted: Any) -> bool:
        nonlocal generation, in_use
        generation, sent = coordinator.generation, coordinator._session_timeout_ms
        if not await join(wanted):
            return False
        if generation != coordinator.generation:
            in_use = computed
        if computed != in_use or sent != coordinator._session_timeout_ms:
            coordinator.request_rejoin()
        return True

    def assign_and_go_on(partitions: Any) -> None:
        before = subscription.subscription.assignment
        assign(partitions)
        if before is None or generation < 0 or generation != coordinator.generation:
            return
        after = subscription.subscription.assignment
        for partition in before.tps & after.tps:
            _carry_over(before.state_value(partition), after.state_value(partition))

    coordinator._do_rejoin_group, coordinator._perform_assignment = join_until_current, compute
    subscription.assign_from_subscribed = assign_and_go_on


def _carry_over(before: Any, after: Any) -> None:
    if before.has_valid_position:
        after.seek(before.position)
    elif before.awaiting_reset:
        after.await_reset(before.reset_strategy)
    if before.paused:
        after.pause()


class AIOKafkaProducer(aiokafka.AIOKafkaProducer):  # type: ignore[misc]  # its types are not published
    """An ``aiokafka.AIOKafkaProducer`` that follows the dynamic config ``acks``.

    ``start`` makes the first request, before the first record, and waits for it at most five seconds. Later values take
    effect with the next Produce request. A producer with idempotence or transactions accepts only ``all``. With ``0``,
    aiokafka has no metadata of the record: ``send_and_wait`` returns None.

    Args:
        enable_dynamic_config: Whether to request dynamic configs (``enable.dynamic.config``).
        on_dynamic_config_change: Called after each change on the event loop. It must not block.
        configs: All arguments of aiokafka's producer.
    """

    def __init__(
        self, *, enable_dynamic_config: bool = True, on_dynamic_config_change: OnChange = None, **configs: Any
    ) -> None:
        super().__init__(**configs)
        self._dynamic: OwnConnection | None = None
        self._on_dynamic_config_change = on_dynamic_config_change
        self._wanted = configs if enable_dynamic_config else None
        self._static = {ACKS: _ACKS_BY_WIRE[self._sender._acks]}

    async def start(self) -> None:
        """Fetch the dynamic configs, then start as aiokafka does."""
        if self._wanted is not None:
            is_idempotent = self._txn_manager is not None
            normalise = functools.partial(normalise_producer, is_idempotent=is_idempotent)
            self._dynamic = await _start(self, self._wanted, client_id=self.client._client_id, normalise=normalise)
        async with _ended_by_failure(self._dynamic):
            await super().start()

    async def stop(self) -> None:
        """Deliver pending records and stop requesting configs."""
        await _stop(self._dynamic)
        await super().stop()

    def _apply_dynamic_configs(self, update: ConfigUpdate) -> None:
        self._sender._acks = _WIRE_BY_ACKS[update.effective[ACKS]]


class AIOKafkaConsumer(aiokafka.AIOKafkaConsumer):  # type: ignore[misc]  # its types are not published
    """An ``aiokafka.AIOKafkaConsumer`` that follows ``session.timeout.ms`` and ``heartbeat.interval.ms``.

    ``start`` makes the first request, before the first JoinGroup, and waits for it at most five seconds. The consumer
    joins again to send a changed session timeout to the coordinator, and restarts its heartbeats for a changed
    interval. If the group did not rebalance meanwhile, the consumer continues behind the last returned record, or at
    the offset of a later ``seek``, and paused partitions stay paused. A rebalance listener is called as for every join.

    Args:
        topics: As in aiokafka.
        enable_dynamic_config: Whether to request dynamic configs (``enable.dynamic.config``).
        on_dynamic_config_change: Called after each change on the event loop. It must not block.
        configs: All arguments of aiokafka's consumer.
    """

    def __init__(
        self,
        *topics: str,
        enable_dynamic_config: bool = True,
        on_dynamic_config_change: OnChange = None,
        **configs: Any,
    ) -> None:
        super().__init__(*topics, **configs)
        self._dynamic: OwnConnection | None = None
        is_wanted = enable_dynamic_config and configs.get("group_id") is not None
        self._on_dynamic_config_change = on_dynamic_config_change
        self._wanted = configs if is_wanted else None
        self._static = {
            SESSION_TIMEOUT_MS: str(self._session_timeout_ms),
            HEARTBEAT_INTERVAL_MS: str(self._heartbeat_interval_ms),
        }

    async def start(self) -> None:
        """Fetch the dynamic configs, then start as aiokafka does."""
        if self._wanted is not None:
            self._dynamic = await _start(
                self, self._wanted, client_id=self._client._client_id, normalise=normalise_consumer
            )
        joins_with = self._session_timeout_ms
        async with _ended_by_failure(self._dynamic):
            await super().start()
        if self._dynamic is not None and self._dynamic.is_on:
            watch_rejoins(self._coordinator)
            if joins_with != self._session_timeout_ms:
                self._coordinator.request_rejoin()

    async def stop(self) -> None:
        """Leave the group and stop requesting configs."""
        await _stop(self._dynamic)
        await super().stop()

    def _apply_dynamic_configs(self, update: ConfigUpdate) -> None:
        session_timeout_ms = int(update.effective[SESSION_TIMEOUT_MS])
        heartbeat_interval_ms = int(update.effective[HEARTBEAT_INTERVAL_MS])
        self._session_timeout_ms, self._heartbeat_interval_ms = session_timeout_ms, heartbeat_interval_ms
        coordinator = self._coordinator
        if coordinator is None:
            return
        coordinator._session_timeout_ms = session_timeout_ms
        coordinator._heartbeat_interval_ms = heartbeat_interval_ms
        if any(change.name == SESSION_TIMEOUT_MS for change in update.changes):
            coordinator.request_rejoin()  # restarts the heartbeats afterwards
        else:
            restart_heartbeats(coordinator)


def restart_heartbeats(coordinator: Any) -> None:
    """Restart the heartbeats of a coordinator if they are running. Send the first one at once.

    While they are not running, or are being stopped, the consumer joins or leaves; it also joins soon if that is due.
    A join starts them itself, and heartbeats of the earlier generation would only ask for one more join.

    Args:
        coordinator: aiokafka's ``GroupCoordinator`` of a started consumer.
    """
    running = coordinator._heartbeat_task
    if running is None or running.done() or running.cancelling() or coordinator._rejoin_needed_fut.done():
        return
    # At once, not after the end of the task, so that nothing else can start or stop heartbeats meanwhile.
    running.cancel()
    coordinator._heartbeat_task = asyncio.create_task(_beat_at_once(coordinator))


async def _beat_at_once(coordinator: Any) -> None:
    """Send a heartbeat, then continue with aiokafka's heartbeats.

    Those begin with a pause of one interval. After the pause that was cut short, it could exceed the session timeout.
    """
    with contextlib.suppress(asyncio.CancelledError):  # aiokafka awaits the end of the task that it has cancelled
        while coordinator.member_id and not await coordinator._do_heartbeat():
            await asyncio.sleep(coordinator._retry_backoff_ms / 1000)
            await coordinator.ensure_coordinator_known()
        await coordinator._heartbeat_routine()


async def _start(
    client: Any,
    configs: dict[str, Any],
    *,
    client_id: str,
    normalise: Callable[[Values], Values],
) -> OwnConnection | None:
    """Start to request configs. Return when the first answer has taken effect, or after some seconds."""
    if configs.get("sasl_oauth_token_provider") is not None:
        logger.warning("Dynamic configs are off for client %s: only aiokafka can use its token provider", client_id)
        return None
    # A start that failed may have left dynamic values in place.
    client._apply_dynamic_configs(ConfigUpdate(changes=(), effective=client._static))
    loop = asyncio.get_running_loop()
    reference = weakref.ref(client)

    def apply(update: ConfigUpdate) -> None:
        if (live := reference()) is not None:
            live._apply_dynamic_configs(update)
            notify(live._on_dynamic_config_change, update)

    def receive(_: object, update: ConfigUpdate) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed, so the change cannot be reported
            loop.call_soon_threadsafe(apply, update)

    connection = OwnConnection(
        client=client,
        settings=_DEFAULT_CONNECTION
        | {name: configs[name] for name in _CONNECTION if name in configs}
        | {"client_id": client_id},
        software_name=SOFTWARE,
        configs=DynamicConfigs(
            client_id=client_id,
            static=client._static,
            normalise=normalise,
            interval_s=configs.get("metadata_max_age_ms", _DEFAULT_MAX_AGE_MS) / 1000,
            retry_backoff_s=configs.get("retry_backoff_ms", _DEFAULT_BACKOFF_MS) / 1000,
        ),
        apply=receive,
    )
    async with _ended_by_failure(connection):  # or by cancellation
        await connection.start_async()  # received changes are queued before this coroutine continues
    return connection


@contextlib.asynccontextmanager
async def _ended_by_failure(connection: OwnConnection | None) -> AsyncIterator[None]:
    """Stop requesting configs for a client that failed to start. A second attempt starts again."""
    try:
        yield
    except BaseException:
        await _stop(connection)
        raise


async def _stop(connection: OwnConnection | None) -> None:
    if connection is not None:
        await connection.close_async()
