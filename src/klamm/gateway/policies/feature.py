"""Policies as a feature of the gateway, and the policies on client ids and APIs.

A client id is decided on at the first request with it, an API at every request (``relay.admission``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.gateway.policies.decisions import remembered_effect
from klamm.gateway.policies.facts import predict_impact, topic_config_types
from klamm.gateway.policies.policy_api import ResourceTurns
from klamm.gateway.relay.features import Feature
from klamm.gateway.relay.filter import Wait
from klamm.policy.details import ApiDetails, ClientDetails
from klamm.policy.kinds import ALTER_CONFIG, API, CLIENT, GATEWAY_KINDS
from klamm.policy_runtime import PolicyRuntime
from klamm.policy_runtime.metrics import report_decisions
from klamm.protocol.api import api_name
from klamm.server.attempt import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from klamm.admin import AdminClient
    from klamm.gateway.policies.policy_api import PolicyApi
    from klamm.gateway.relay.filter import FilterContext
    from klamm.monitoring.exposition import Page
    from klamm.policy.kinds import PolicyKind
    from klamm.policy_runtime import Policies


class PolicyFeature(Feature):
    """Policies that the gateway's settings name. An API without a policy is not filtered.

    Those that alter configs are, as clients could set what configures the gateway's policies.
    """

    def __init__(
        self, runtime: PolicyRuntime, apis: Iterable[PolicyApi], unfiltered: Mapping[int, Collection[PolicyKind]]
    ) -> None:
        self._runtime = runtime
        self.policies = policies = runtime.policies
        turns = ResourceTurns()
        used = [api for api in apis if policies.guards_kind(api.kind) or (api.kind is ALTER_CONFIG and policies.guards)]
        self.filters = {api.key: api.filter(policies, turns) for api in used}
        self.last_versions = {api.key: api.last_version for api in used if api.last_version is not None}
        self.withheld = frozenset(key for key, kinds in unfiltered.items() if any(map(policies.guards_kind, kinds)))
        if policies.guards_kind(CLIENT):
            self.admit = partial(decide_on_client, policies)
        if policies.guards_kind(API):
            self.admit_request = partial(decide_on_api, policies)

    @classmethod
    async def load(
        cls,
        configs: Mapping[str, str],
        apis: Iterable[PolicyApi],
        unfiltered: Mapping[int, Collection[PolicyKind]],
    ) -> PolicyFeature:
        """Create the policies, and start to reload them when their files change.

        Every policy is called in its thread, so that one that hangs delays only what it decides on.

        Args:
            configs: Settings of the gateway.
            apis: APIs that policies decide on.
            unfiltered: API keys by which a client could bypass the policies of some kinds, with these kinds.

        Raises:
            PolicyLoadError: A policy cannot be created.
        """
        runtime = await PolicyRuntime.load(configs, GATEWAY_KINDS, in_threads=True)
        runtime.start()
        return cls(runtime, apis, unfiltered)

    async def start(self, admin: AdminClient) -> None:
        """Let policies read the impact of changes, and check that the upstream has the configs that rules name."""
        self._runtime.policies.predict_impact = partial(predict_impact, admin)
        await self._runtime.follow_upstream(lambda: topic_config_types(admin))

    def report(self, page: Page) -> None:
        """Add the number of decisions."""
        report_decisions(page, self._runtime.policies)

    def reload(self) -> None:
        """Reload the policies soon."""
        self._runtime.reload()

    async def close(self) -> None:
        """Stop reloading, and close the policies."""
        await self._runtime.stop()
        await self._runtime.policies.close()


def decide_on_client(policies: Policies, context: FilterContext) -> ApiError | Wait | None:
    """Ask the policy about the client id of a request; return the error, None when it is allowed."""
    return _admission(policies, CLIENT, ClientDetails(**_client(context)), context)


def decide_on_api(policies: Policies, context: FilterContext) -> ApiError | Wait | None:
    """Ask the policy about the API of a request; return the error, None when it is allowed."""
    return _admission(policies, API, ApiDetails(api=api_name(context.api_key), **_client(context)), context)


def _client(context: FilterContext) -> dict[str, Any]:
    author = context.author
    return {"client_id": author.client_id, "principal": author.principal, "listener": author.listener}


def _admission(
    policies: Policies, kind: PolicyKind, details: ClientDetails | ApiDetails, context: FilterContext
) -> ApiError | Wait | None:
    answer = remembered_effect(policies, kind, details, context)
    return answer if isinstance(answer, (ApiError, Wait)) else None
