"""Guard that asks a policy about config changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.policy.details import AlterConfigDetails
from klamm.policy.kinds import ALTER_CONFIG

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from klamm.broker.configs.decider import AlterConfigGuard, ConfigDecision
    from klamm.policy_runtime import Policies
    from klamm.server.author import Author


class _PolicyGuard:
    """Adapter from config decisions to the policy's input."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    def turn(self) -> AbstractAsyncContextManager[object]:
        return self._policies.turn(ALTER_CONFIG)

    async def check(self, decision: ConfigDecision, author: Author, *, validate_only: bool) -> bool:
        result = decision.result
        details = AlterConfigDetails(
            resource_type=decision.resource_type.name,
            resource_name=decision.resource_name,
            configs=decision.altered,
            result=result,
            principal=author.principal,
            client_id=author.client_id,
            listener=author.listener,
            validate_only=validate_only,
            removed=frozenset(decision.before).difference(result),
            defaults=decision.defaults,
        )
        return await self._policies.check(ALTER_CONFIG, details)


def alter_config_guard(policies: Policies) -> AlterConfigGuard | None:
    """Return the guard that asks the policy on config changes; None without such a policy."""
    return _PolicyGuard(policies) if policies.guards_kind(ALTER_CONFIG) else None
