"""Policies on client ids. A client is judged by its first request with a client id (``gateway.refusals``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.gateway.interceptors import Postponed
from klamm.gateway.policies.verdicts import remembered_effect
from klamm.policy.details import ClientDetails
from klamm.policy.kinds import CLIENT
from klamm.server.attempt import ApiError

if TYPE_CHECKING:
    from klamm.gateway.interceptors import InterceptedCall
    from klamm.policy_runtime import Policies


class ClientJudge:
    """Judge of client ids.

    Args:
        policies: Policies in use.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    def judge(self, context: InterceptedCall) -> ApiError | Postponed | None:
        """Ask the policy about the client id of a request; return the error for the client, None when it is allowed."""
        author = context.author
        details = ClientDetails(client_id=author.client_id, principal=author.principal, listener=author.listener)
        answer = remembered_effect(self._policies, CLIENT, details, context)
        return answer if isinstance(answer, (ApiError, Postponed)) else None
