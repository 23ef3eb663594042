"""AlterConfigs (key 33) and IncrementalAlterConfigs (key 44) in the gateway: policies on config changes.

The request is first forwarded with ``validate_only``, as the client, so errors of the upstream come before the policy.
Then the configs of the valid resources are read and the policy decides on what they will be. The allowed resources are
forwarded. The policy's turn is held from reading to the upstream's response, so two changes through one gateway cannot
be allowed alone and break a rule together. Changes through other gateways, or past them, may come in between.

Loggers are forwarded without a question, as in the broker.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from klamm.client.errors import ConnectionLostError
from klamm.gateway.policies.facts import config_decision, describe_configs
from klamm.gateway.policies.parts import are_same, in_order
from klamm.gateway.policies.verdicts import Allowed, judge, verdict
from klamm.policy.kinds import ALTER_CONFIG
from klamm.policy_runtime.details import alter_config_details
from klamm.policy_runtime.overrides import overridden_configs, overridden_operations
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.types import ResourceType
from klamm.server.attempt import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.admin import ConfigEntry
    from klamm.gateway.interceptors import InterceptedCall
    from klamm.policy.answers import Override
    from klamm.policy_runtime import Policies

Request: TypeAlias = AlterConfigsRequest | IncrementalAlterConfigsRequest
Response: TypeAlias = AlterConfigsResponse | IncrementalAlterConfigsResponse
Asked: TypeAlias = "AlterConfigsRequest.AlterConfigsResource | IncrementalAlterConfigsRequest.AlterConfigsResource"
Entry: TypeAlias = (
    "AlterConfigsResponse.AlterConfigsResourceResponse | IncrementalAlterConfigsResponse.AlterConfigsResourceResponse"
)
MOST_TURN_S: Final = 30.0
"""Seconds within which the upstream must respond while the policy's turn is held."""
CONFIGURED: Final = frozenset(ResourceType) - {ResourceType.BROKER_LOGGER, ResourceType.UNKNOWN}
"""Types of resources that have configs. Loggers have levels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Api:
    """Message classes of one of the two APIs, which have the same fields."""

    key: ApiKey
    request: type[Any]
    response: type[Any]
    entry: type[Any]


INCREMENTAL: Final = _Api(
    key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
    request=IncrementalAlterConfigsRequest,
    response=IncrementalAlterConfigsResponse,
    entry=IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
)
LEGACY: Final = _Api(
    key=ApiKey.ALTER_CONFIGS,
    request=AlterConfigsRequest,
    response=AlterConfigsResponse,
    entry=AlterConfigsResponse.AlterConfigsResourceResponse,
)


def resource_key(resource: Asked | Entry) -> tuple[int, str]:
    """Return type and name of a resource."""
    return resource.resource_type, resource.resource_name


class AlterConfigsJudge:
    """Interceptor of both APIs that alter configs.

    Args:
        policies: Policies in use.
        api: ``INCREMENTAL`` or ``LEGACY``.
    """

    def __init__(self, policies: Policies, api: _Api) -> None:
        self._policies = policies
        self._api = api

    def with_resources(
        self, request: Request, resources: Collection[Asked], *, validate_only: bool | None = None
    ) -> Request:
        """Return a request for some of its resources, or the request itself if nothing changes.

        ``validate_only`` None keeps that of the request.
        """
        only = request.validate_only if validate_only is None else validate_only
        if only == request.validate_only and are_same(resources, request.resources):
            return request
        made: Request = self._api.request(resources=list(resources), validate_only=only)
        return made

    def merge_resources(self, request: Request, entries: Collection[Entry], *, throttle_time_ms: int) -> Response:
        """Return the response with these entries in the order of the request."""
        responses = in_order(map(resource_key, request.resources), entries, resource_key)
        made: Response = self._api.response(throttle_time_ms=throttle_time_ms, responses=responses)
        return made

    def denied_resource(self, resource: Asked, error: ApiError) -> Entry:
        """Return the entry of a resource that is not altered."""
        entry: Entry = self._api.entry(
            error_code=error.error_code,
            error_message=error.error_message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        return entry

    def overridden_resource(self, resource: Asked, override: Override) -> Asked:
        """Return a resource of a request with the changes of a policy."""
        if isinstance(resource, AlterConfigsRequest.AlterConfigsResource):
            pairs = overridden_configs([(config.name, config.value) for config in resource.configs], override.configs)
            return AlterConfigsRequest.AlterConfigsResource(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[AlterConfigsRequest.AlterableConfig(name=name, value=value) for name, value in pairs],
            )
        return IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=overridden_operations(resource.configs, override.configs),
        )

    def with_note(self, entry: Entry, note: str | None) -> Entry:
        """Return the entry of an altered resource with a text about what the policy changed; others as they are."""
        if note is None or entry.error_code:
            return entry
        noted: Entry = self._api.entry(
            error_code=entry.error_code,
            error_message=note,
            resource_type=entry.resource_type,
            resource_name=entry.resource_name,
        )
        return noted

    async def handle(self, request: Request, context: InterceptedCall) -> Response:
        """Return one entry per resource. A denied resource does not affect the others."""
        trial: Response = await context.forward(self.with_resources(request, request.resources, validate_only=True))
        entries: list[Entry] = [entry for entry in trial.responses if entry.error_code]
        passed = {resource_key(entry): entry for entry in trial.responses if not entry.error_code}
        asked = [resource for resource in request.resources if resource_key(resource) in passed]
        throttle_time_ms = trial.throttle_time_ms
        async with self._policies.turn(ALTER_CONFIG):
            described = {resource_key(resource) for resource in asked if resource.resource_type in CONFIGURED}
            known = await describe_configs(context.admin, described)
            allowed: dict[tuple[int, str], Allowed[Asked]] = {}
            for resource in asked:
                judged = await self._judge(resource, known.get(resource_key(resource)), context, request)
                if isinstance(judged, Allowed):
                    allowed[resource_key(resource)] = judged
                else:
                    entries.append(judged)
            if request.validate_only:
                entries += [self.with_note(passed[key], each.note) for key, each in allowed.items()]
            elif allowed:
                real = await self._forward(
                    self.with_resources(request, [each.part for each in allowed.values()]), context
                )
                for entry in real.responses:
                    forwarded = allowed.get(resource_key(entry))
                    entries.append(self.with_note(entry, None if forwarded is None else forwarded.note))
                throttle_time_ms = max(throttle_time_ms, real.throttle_time_ms)
        return self.merge_resources(request, entries, throttle_time_ms=throttle_time_ms)

    async def _forward(self, request: Request, context: InterceptedCall) -> Response:
        """Forward a request while the turn is held, and close the connection if the upstream does not respond.

        The client could hold up the changes of all others otherwise, for example by not reading its responses.
        """
        try:
            async with asyncio.timeout(MOST_TURN_S):
                response: Response = await context.forward(request)
        except TimeoutError:
            raise ConnectionLostError(f"No response within {MOST_TURN_S:.0f} s") from None
        return response

    async def _judge(
        self,
        resource: Asked,
        described: Mapping[str, ConfigEntry] | KafkaApiError | None,
        context: InterceptedCall,
        request: Request,
    ) -> Allowed[Asked] | Entry:
        """Return a valid resource as the policy allows it, or its entry when it may not be altered."""

        async def ask(part: Asked) -> ApiError | Override | None:
            return await self._ask(part, described, context, validate_only=request.validate_only)

        async def override(changes: Override) -> Allowed[Asked] | Entry:
            changed = self.overridden_resource(resource, changes)
            trial = await self._forward(self.with_resources(request, [changed], validate_only=True), context)
            rejected = next((entry for entry in trial.responses if entry.error_code), None)
            return Allowed(part=changed) if rejected is None else rejected

        return await judge(resource, ask, override, lambda error: self.denied_resource(resource, error))

    async def _ask(
        self,
        resource: Asked,
        described: Mapping[str, ConfigEntry] | KafkaApiError | None,
        context: InterceptedCall,
        *,
        validate_only: bool,
    ) -> ApiError | Override | None:
        if described is None:
            return None
        if isinstance(described, KafkaApiError):
            text = f"The gateway cannot read the configs, so no policy can decide: {described.error_message}"
            return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        try:
            decision = config_decision(resource, described)
        except KafkaApiError as error:  # the rules of the upstream for valid requests differ from those known here
            return ApiError(error.error_code, error.error_message)
        details = alter_config_details(decision, context.author, validate_only=validate_only)
        return await verdict(self._policies, ALTER_CONFIG, details, api=self._api.key)
