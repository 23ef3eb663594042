"""Policies on client ids and on APIs.

A client id is decided on at the first request with it, an API at every request (``relay.admission``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.gateway.policies.verdicts import remembered_effect
from klamm.gateway.relay.filter import Wait
from klamm.policy.details import ApiDetails, ClientDetails
from klamm.policy.kinds import API, CLIENT
from klamm.protocol.api import api_name
from klamm.server.attempt import ApiError

if TYPE_CHECKING:
    from klamm.gateway.relay.filter import FilterContext
    from klamm.policy_runtime import Policies


class ClientDecisions:
    """Decisions of the policies about client ids and APIs.

    Args:
        policies: Policies in use.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    def decide(self, context: FilterContext) -> ApiError | Wait | None:
        """Ask the policies about a request; return the error for the client, None when it is allowed."""
        author, policies = context.author, self._policies
        who = {"client_id": author.client_id, "principal": author.principal, "listener": author.listener}
        answers = []
        if policies.guards_kind(CLIENT):
            answers.append(remembered_effect(policies, CLIENT, ClientDetails(**who), context))
        if policies.guards_kind(API):
            details = ApiDetails(api=api_name(context.api_key), **who)
            answers.append(remembered_effect(policies, API, details, context))
        return next((answer for answer in answers if isinstance(answer, (ApiError, Wait))), None)
