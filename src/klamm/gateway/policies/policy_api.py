"""Interface between the policies and the APIs that they decide on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.gateway.policies.turns import ResourceTurns
    from klamm.gateway.relay.filter import Filter
    from klamm.policy.kinds import PolicyKind
    from klamm.policy_runtime import Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyApi:
    """API that policies of one kind decide on."""

    key: int
    kind: PolicyKind
    filter: Callable[[Policies, ResourceTurns], Filter]
    """Returns the filter that asks the policies. Turns order the changes of each resource."""
    last_version: int | None = None
    """Last version that the policies can decide on; None if they can decide on all."""
