"""Guards of config changes: the final checks of a change that is otherwise valid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from klamm.policy.kinds import ALTER_CONFIG
from klamm.policy_runtime.details import alter_config_details
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Set
    from contextlib import AbstractAsyncContextManager

    from klamm.configs.operations import ConfigDecision
    from klamm.history.change import Author
    from klamm.policy.answers import Override
    from klamm.policy_runtime import Policies


class AlterConfigGuard(Protocol):
    """Final check of otherwise valid changes: a policy, the TLS settings or the policy settings."""

    @property
    def resource_types(self) -> Set[ResourceType]:
        """Types of the resources whose changes are checked. Changes of loggers are never checked."""
        ...

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Return the context manager to hold from the decision until the change is applied."""
        ...

    async def check(
        self, decision: ConfigDecision, author: Author, overridden: Override | None, *, validate_only: bool
    ) -> Override | None:
        """Raise a KafkaApiError to reject a change, or return an override of it.

        ``overridden`` is the override that made the change; None at first.
        """
        ...


class _PolicyGuard:
    """Adapter from config decisions to the policy's input."""

    resource_types: Final = frozenset(ResourceType) - {ResourceType.BROKER_LOGGER}

    def __init__(self, policies: Policies, replication_factor: Callable[[str], int | None]) -> None:
        self._policies = policies
        self._replication_factor = replication_factor

    def turn(self) -> AbstractAsyncContextManager[object]:
        return self._policies.turn(ALTER_CONFIG)

    async def check(
        self, decision: ConfigDecision, author: Author, overridden: Override | None, *, validate_only: bool
    ) -> Override | None:
        is_topic = decision.resource_type is ResourceType.TOPIC
        factor = self._replication_factor(decision.resource_name) if is_topic else None
        details = alter_config_details(decision, author, validate_only=validate_only, replication_factor=factor)
        return await self._policies.check(ALTER_CONFIG, details, overridden)


def alter_config_guard(policies: Policies, replication_factor: Callable[[str], int | None]) -> AlterConfigGuard | None:
    """Return the guard that asks the policy on config changes; None without such a policy.

    Args:
        policies: Policies in use.
        replication_factor: Function that returns the smallest number of replicas of a topic's partitions.
    """
    return _PolicyGuard(policies, replication_factor) if policies.guards_kind(ALTER_CONFIG) else None
