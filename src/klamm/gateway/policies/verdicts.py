"""Questions to the policies, with each denial as the error of one part of a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.policy_runtime.decision import TWICE
from klamm.protocol.errors import ErrorCode
from klamm.server.attempt import NONE, ApiError, attempt

if TYPE_CHECKING:
    from klamm.policy.answers import Override
    from klamm.policy.details import Details
    from klamm.policy.kinds import PolicyKind
    from klamm.policy_runtime import Policies
    from klamm.protocol.api import ApiKey

OVERRIDDEN_TWICE: Final = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, TWICE)
"""Error of a part that the policy overrides a second time."""


async def verdict(policies: Policies, kind: PolicyKind, details: Details, *, api: ApiKey) -> ApiError | Override | None:
    """Ask the policy about a change.

    The caller must hold the policy's turn.

    Returns:
        The error for the client, the changes to make, or None when the change is allowed as it is.
    """
    override, error = await attempt(lambda: policies.check(kind, details), api=api)
    return override if error == NONE else error


async def denial(policies: Policies, kind: PolicyKind, details: Details, *, api: ApiKey) -> ApiError | None:
    """Ask a policy that cannot override; return the error for the client, None when the change is allowed."""
    answer = await verdict(policies, kind, details, api=api)
    return answer if isinstance(answer, ApiError) else None
