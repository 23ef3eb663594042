"""kafka-python's consumer with a session timeout and heartbeat interval that can be changed while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kafka
from kafka.coordinator.base import MemberState

from klamm.client_configs.definitions import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from klamm.clients.dynamic_config import ConfigUpdate, DynamicConfigs, normalise_consumer
from klamm.clients.kafka_python_loop import KafkaPythonLoop, named_kafka_client

if TYPE_CHECKING:
    from collections.abc import Callable


class KafkaConsumer(kafka.KafkaConsumer):  # type: ignore[misc]  # kafka-python is untyped
    """A ``kafka.KafkaConsumer`` that follows ``session.timeout.ms`` and ``heartbeat.interval.ms`` (KIP-649).

    The constructor makes the first request, before the first JoinGroup, and waits for it at most five seconds. With the
    next ``poll``, the consumer joins again to send a changed session timeout to the coordinator. A consumer without a
    group has neither config and sends no requests. Even without dynamic configs, a join whose outcome arrives between
    two calls of ``poll`` is not lost.

    Args:
        topics: As in kafka-python.
        enable_dynamic_config: Whether to request dynamic configs (``enable.dynamic.config``).
        on_dynamic_config_change: Called after each change in the consumer's network thread. It must not block.
        configs: All arguments of kafka-python's consumer.
    """

    def __init__(
        self,
        *topics: str,
        enable_dynamic_config: bool = True,
        on_dynamic_config_change: Callable[[ConfigUpdate], None] | None = None,
        **configs: Any,
    ) -> None:
        if enable_dynamic_config:
            configs.setdefault("kafka_client", named_kafka_client())
        super().__init__(*topics, **configs)
        self._joins: _Joins | None = None
        if self.config["group_id"] is None:
            return
        self._joins = _Joins(self._coordinator)
        if enable_dynamic_config:
            KafkaPythonLoop(
                manager=self._manager,
                configs=self._dynamic_configs(),
                apply=self._apply_dynamic_configs,
                on_change=on_dynamic_config_change,
            ).start()

    def _dynamic_configs(self) -> DynamicConfigs:
        config = self._coordinator.config
        return DynamicConfigs(
            client_id=self.config["client_id"],
            static={
                SESSION_TIMEOUT_MS: str(config["session_timeout_ms"]),
                HEARTBEAT_INTERVAL_MS: str(config["heartbeat_interval_ms"]),
            },
            normalise=normalise_consumer,
            interval_s=self.config["metadata_max_age_ms"] / 1000,
            retry_backoff_s=self.config["retry_backoff_ms"] / 1000,
        )

    def _apply_dynamic_configs(self, update: ConfigUpdate) -> None:
        """Apply values to the next heartbeat and JoinGroup. Runs in the network thread, which sends both."""
        coordinator = self._coordinator
        effective = {
            "session_timeout_ms": int(update.effective[SESSION_TIMEOUT_MS]),
            "heartbeat_interval_ms": int(update.effective[HEARTBEAT_INTERVAL_MS]),
        }
        for config in (self.config, coordinator.config, coordinator.heartbeat.config):
            config.update(effective)
        if any(change.name == SESSION_TIMEOUT_MS for change in update.changes):
            coordinator.request_rejoin()

    def poll(self, *args: Any, **kwargs: Any) -> Any:
        """Fetch records, as kafka-python does."""
        if self._joins is not None:
            self._joins.catch_up()
        return super().poll(*args, **kwargs)


class _Joins:
    """Workaround for three behaviours of kafka-python that disturb a group, above all on a busy machine.

    First, an assignment that arrives between two short polls is discarded and requested again; if the leader does that,
    the whole group rebalances. Second, a join that fails between two polls, for example because the group rebalances,
    may never be repeated; without heartbeats the member is then removed from its group. Third, a request to join is
    forgotten while a join is in progress, although that join may carry an old session timeout.

    Args:
        coordinator: kafka-python's ``ConsumerCoordinator`` of a consumer that has not joined yet.
    """

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._protocols = coordinator.group_protocols
        self._joined_with: int | None = None
        """Session timeout of the latest JoinGroup, in milliseconds."""
        coordinator.group_protocols = self._note

    def _note(self) -> Any:
        self._joined_with = self._coordinator.config["session_timeout_ms"]
        return self._protocols()

    def catch_up(self) -> None:
        """Finish a join whose outcome was lost, or repeat it. Runs in the application's thread, before a poll."""
        coordinator = self._coordinator
        join = coordinator._join_task
        if coordinator.rejoining and join is not None and join.is_done:
            if join.succeeded():
                coordinator._net.run(self._finish, join.value)
            else:
                coordinator.request_rejoin()
        if not coordinator.rejoining and self._joined_with not in {None, coordinator.config["session_timeout_ms"]}:
            coordinator.request_rejoin()

    async def _finish(self, assignment: bytes) -> None:
        coordinator = self._coordinator
        coordinator._join_task = None
        with coordinator._lock:
            coordinator.rejoining = coordinator.rejoin_needed = False
            coordinator.state = MemberState.STABLE
            coordinator._enable_heartbeat()
        generation = coordinator._generation
        await coordinator._on_join_complete_async(
            generation.generation_id, generation.member_id, generation.protocol, assignment
        )
