"""Rejoins of an aiokafka consumer without losing its positions, which aiokafka discards with every join."""

from __future__ import annotations

from typing import Any


def watch_rejoins(coordinator: Any) -> None:
    """Make a coordinator join once more and restore what aiokafka discards.

    aiokafka ignores a request to join while a join is in progress, so a session timeout that changes at that moment
    would never reach the broker. It also starts every assignment from the committed offsets. Within one generation no
    other consumer can have owned the partitions, so positions and pauses remain valid. After a rebalance the committed
    offsets count, as always.

    Args:
        coordinator: aiokafka's ``GroupCoordinator`` of a started consumer.
    """
    join, subscription = coordinator._do_rejoin_group, coordinator._subscription
    assign = subscription.assign_from_subscribed
    generation = coordinator.generation

    async def join_until_current(wanted: Any) -> bool:
        nonlocal generation
        generation, sent = coordinator.generation, coordinator._session_timeout_ms
        is_in: bool = await join(wanted)
        if is_in and sent != coordinator._session_timeout_ms:
            coordinator.request_rejoin()
        return is_in

    def assign_and_go_on(partitions: Any) -> None:
        before = subscription.subscription.assignment
        assign(partitions)
        if before is None or generation < 0 or generation != coordinator.generation:
            return
        after = subscription.subscription.assignment
        for partition in before.tps & after.tps:
            _carry_over(before.state_value(partition), after.state_value(partition))

    coordinator._do_rejoin_group = join_until_current
    subscription.assign_from_subscribed = assign_and_go_on


def _carry_over(before: Any, after: Any) -> None:
    if before.has_valid_position:
        after.seek(before.position)
    elif before.awaiting_reset:
        after.await_reset(before.reset_strategy)
    if before.paused:
        after.pause()
