"""Questions to the policies, with each denial as the error of one part of a response."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.server.attempt import NONE, ApiError, attempt

if TYPE_CHECKING:
    from klamm.policy.details import Details
    from klamm.policy.kinds import PolicyKind
    from klamm.policy_runtime import Policies
    from klamm.protocol.api import ApiKey


async def denial(policies: Policies, kind: PolicyKind, details: Details, *, api: ApiKey) -> ApiError | None:
    """Ask the policy about a change; return the error for the client, None when the change is allowed.

    The caller must hold the policy's turn.
    """
    _, error = await attempt(lambda: policies.check(kind, details), api=api)
    return None if error == NONE else error
