"""Policies on config changes and their history, for AlterConfigs (key 33) and IncrementalAlterConfigs (key 44).

The request is first forwarded with ``validate_only``, as the client, so errors of the upstream come before the policy.
Then the configs of the valid resources are read and the policy decides on what they will be. The allowed resources are
forwarded. From reading the configs to the upstream's response, the gateway handles one request per resource at a time
(``ResourceTurns``), and it reads all changes that were committed before. So two changes through one gateway cannot be
allowed alone and break a rule together. Changes through other gateways, other processes of this one or the brokers
themselves may come in between.

Without a policy on configs, only settings of the gateway's other policies are rejected.

Loggers are forwarded without a question, as in the broker. The history leaves their levels out, too. It records configs
that a request names even if their values stay the same: the broker that was asked for the values before may not have
known the latest change. A client could otherwise hide the last of several quick changes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from klamm.admin.types import ConfigResource, ConfigSynonym, own_source
from klamm.configs.definitions import base_name, is_secret
from klamm.configs.names import identity_of
from klamm.configs.operations import ConfigDecision, ConfigSchema, plan_incremental_alter, plan_legacy_alter
from klamm.gateway.history.before import described_configs, in_time
from klamm.gateway.history.recorded_api import Change, Outcomes, RecordedApi
from klamm.gateway.policies.decisions import Allowed, ask_policy, decide_part, divide, forward_in_turn, undecided
from klamm.gateway.policies.divided_requests import PartedApi, replaced
from klamm.gateway.policies.facts import (
    UpstreamSchema,
    describe_configs,
    describe_topics,
    inherited,
    own_configs,
)
from klamm.gateway.policies.policy_api import ChangeServer, change_policy
from klamm.history.change import HIDDEN, UNKNOWN
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.lazy_dataclass import dataclass
from klamm.policy.kinds import ALTER_CONFIG, SETTINGS
from klamm.policy_runtime.decision import overridden_configs, overridden_operations
from klamm.policy_runtime.details import alter_config_details
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.types import CLIENT_CONFIGS_FEATURE, ConfigOperation, ConfigSource, ResourceType
from klamm.server.attempt import ApiError
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from klamm.admin import ClusterDescription, ConfigEntry
    from klamm.configs.operations import AlterOperation
    from klamm.gateway.policies.policy_api import PolicyApi, ResourceTurns
    from klamm.gateway.relay.filter import FilterContext
    from klamm.policy.answers import Override
    from klamm.policy_runtime import Policies
    from klamm.protocol.api import ApiKey


Request: TypeAlias = AlterConfigsRequest | IncrementalAlterConfigsRequest
Response: TypeAlias = AlterConfigsResponse | IncrementalAlterConfigsResponse
Resource: TypeAlias = "AlterConfigsRequest.AlterConfigsResource | IncrementalAlterConfigsRequest.AlterConfigsResource"
Entry: TypeAlias = (
    "AlterConfigsResponse.AlterConfigsResourceResponse | IncrementalAlterConfigsResponse.AlterConfigsResourceResponse"
)
_SET_IN_GATEWAY: Final = (
    "{} is a setting of the gateway's policies, which the brokers behind it do not have: set it with --config or --set"
    " of the gateway, and restart the gateway."
)
CONFIGURED: Final = frozenset(ResourceType) - {ResourceType.BROKER_LOGGER, ResourceType.UNKNOWN}
"""Types of resources that have configs. Loggers have levels."""
_OPERATIONS: Final = frozenset(ConfigOperation)
_OF_LISTS: Final = frozenset({ConfigOperation.APPEND, ConfigOperation.SUBTRACT})
_CLUSTER_DEFAULT: Final = (int(ResourceType.BROKER), "")
_DYNAMIC: Final = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
_INHERITING: Final = (ResourceType.TOPIC, ResourceType.BROKER)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsApi(PartedApi):
    """One of the two APIs, whose messages have the same fields."""

    api_key: ApiKey
    request: type[Any]
    parts: str = "resources"
    entries: str = "responses"
    key: tuple[str, ...] = ("resource_type", "resource_name")


def resource_key(resource: Resource | Entry) -> tuple[int, str]:
    """Return type and name of a resource."""
    return resource.resource_type, resource.resource_name


class AlteredConfigs(ChangeServer):
    """Server of both APIs that alter configs.

    Args:
        policies: As in ``ChangeServer``.
        turns: As in ``ChangeServer``.
        api: One of the two APIs.
    """

    def __init__(self, policies: Policies, turns: ResourceTurns, api: AlterConfigsApi) -> None:
        super().__init__(policies, turns)
        self._api = api

    def overridden_resource(self, resource: Resource, override: Override) -> Resource:
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

    async def handle(self, request: Request, context: FilterContext) -> Response:
        """Return one entry per resource. A denied resource does not affect the others."""
        api, errors = self._api, await _gateway_settings(request, context)
        errors |= _unknown_operations(request) | _repeated(request)
        rejected = [
            api.denied(each, errors[key]) for each in request.resources if (key := resource_key(each)) in errors
        ]

        async def decide(resources: Sequence[Resource], _: object) -> list[Allowed[Resource] | Entry]:
            facts = await _read(resources, context)
            return [
                await self._decide(each, facts.get(resource_key(each)), context, request)
                async for each in TimeSlice().over(resources)
            ]

        if self._policies.guards_kind(ALTER_CONFIG):
            entries, throttle_time_ms = [*rejected], 0
            for some in _sections([each for each in request.resources if resource_key(each) not in errors]):
                response: Response = await divide(
                    api,
                    api.with_parts(request, some, validate_only=request.validate_only),
                    context,
                    decide,
                    turns_of=lambda valid: self._turns.of(map(resource_key, valid)),
                )
                entries += response.responses
                throttle_time_ms = max(throttle_time_ms, response.throttle_time_ms)
        else:
            rest = [each for each in request.resources if resource_key(each) not in errors]
            real = await context.forward(api.with_parts(request, rest, validate_only=request.validate_only))
            entries, throttle_time_ms = [*rejected, *real.responses], real.throttle_time_ms
        merged: Response = api.merged(request, entries, throttle_time_ms=throttle_time_ms)
        return merged

    async def _decide(
        self, resource: Resource, facts: _Facts | KafkaApiError | None, context: FilterContext, request: Request
    ) -> Allowed[Resource] | Entry:
        """Return a valid resource as the policy allows it, or its entry when it may not be altered."""

        def deny(error: ApiError) -> ApiError | None:
            kind, name = resource_key(resource)
            subject = f"{ResourceType(kind).name if kind in CONFIGURED else kind} {name!r}"
            return undecided(self._policies, ALTER_CONFIG, subject, error, context, validate_only=request.validate_only)

        async def ask(part: Resource, overridden: Override | None) -> ApiError | Override | None:
            if resource.resource_type == ResourceType.BROKER_LOGGER:
                return None
            if facts is None:
                text = f"The gateway does not know resource type {resource.resource_type}, so no policy can decide."
                return deny(ApiError(ErrorCode.INVALID_REQUEST, text))
            if isinstance(facts, KafkaApiError):
                text = f"The gateway cannot read the configs, so no policy can decide: {facts.error_message}"
                return deny(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, text))
            try:
                decisions = _possible_decisions(part, facts)
            except KafkaApiError as error:  # the rules of the upstream for valid requests differ from those known here
                return deny(ApiError(error.error_code, error.error_message))
            for decision in decisions:
                details = alter_config_details(
                    decision,
                    context.author,
                    replication_factor=facts.replication_factor,
                    validate_only=request.validate_only,
                )
                answer = await ask_policy(self._policies, ALTER_CONFIG, details, overridden, api=self._api.api_key)
                if answer is not None:
                    return answer
            return None

        async def override(changes: Override) -> Allowed[Resource] | Entry:
            changed = self.overridden_resource(resource, changes)
            trial = await forward_in_turn(self._api.with_parts(request, [changed], validate_only=True), context)
            rejected = next((entry for entry in trial.responses if entry.error_code), None)
            return Allowed(part=changed) if rejected is None else rejected

        return await decide_part(resource, ask, override, lambda error: self._api.denied(resource, error))


def _sections(resources: Sequence[Resource]) -> Sequence[Sequence[Resource]]:
    """Divide resources into those that are decided on together.

    A broker is alone. What it sets concerns topics, so the policy decides on each with the other applied. Repeated
    resources of IncrementalAlterConfigs stay together, because the upstream rejects them.
    """
    counts = Counter(map(resource_key, resources))
    repeated = [each for each in resources if counts[resource_key(each)] > 1]
    once = [each for each in resources if counts[resource_key(each)] == 1]
    groups = groupby(once, key=lambda each: each.resource_name if each.resource_type == ResourceType.BROKER else None)
    sections = [list(group) for _, group in groups]
    return [repeated, *sections] if repeated else sections


def config_decision(
    resource: AlterConfigsRequest.AlterConfigsResource | IncrementalAlterConfigsRequest.AlterConfigsResource,
    described: Mapping[str, ConfigEntry],
    *,
    is_klamm: bool,
) -> ConfigDecision:
    """Return the change of a resource that a valid request makes.

    Args:
        resource: The resource's part of the request.
        described: Configs of the resource before the change.
        is_klamm: Whether the upstream is klamm. There, APPEND and SUBTRACT on a list that is not set start from its
            value in force, and drop blanks around elements. In Kafka, they start from the built-in default, and
            `` delete`` is another element than ``delete``. There the change is the one of a list that is stored without
            blanks (``_possible_decisions``).

    Raises:
        KafkaApiError: The request is invalid, though the upstream accepted it.
    """
    kind, name = identity_of(resource.resource_type, resource.resource_name)
    key = ConfigResource(ResourceType(kind), name)
    before = own_configs(key, described)
    defaults = inherited(described, own_source(key)) if key.type in _INHERITING else {}
    built_in = {
        entry.name: synonym.value
        for entry in described.values()
        for synonym in entry.synonyms
        if synonym.source is ConfigSource.DEFAULT_CONFIG and synonym.value is not None
    }
    schema = UpstreamSchema(described=built_in | defaults if is_klamm else built_in, is_klamm=is_klamm)
    named: frozenset[str] | None = None
    if isinstance(resource, AlterConfigsRequest.AlterConfigsResource):
        changes = plan_legacy_alter(before, [(config.name, config.value) for config in resource.configs], schema)
        named = frozenset([config.name for config in resource.configs])
    else:
        changes = plan_incremental_alter(before, resource.configs, schema)
    return ConfigDecision(
        resource_type=key.type,
        resource_name=key.name,
        changes=changes,
        before=before,
        replaced=named,
        defaults=defaults,
    )


def _possible_decisions(resource: Resource, facts: _Facts) -> Sequence[ConfigDecision]:
    """Return the changes that a valid request may make, the most likely one first.

    Kafka describes a list without the blanks around its elements, but SUBTRACT compares with them: it removes
    ``delete`` from ``compact,delete`` and not from ``compact, delete``, which both are described as the former. So any
    element that is equal but for blanks may be removed or stay, unless the resource inherits the list. The change is
    not forwarded as SET of one result: that would revert what others change at the same time, not through this gateway.

    Raises:
        KafkaApiError: See ``config_decision``.
    """
    first = config_decision(resource, facts.configs, is_klamm=facts.is_klamm)
    if facts.is_klamm or isinstance(resource, AlterConfigsRequest.AlterConfigsResource):
        return (first,)
    certain: list[AlterOperation] = []
    doubtful: list[AlterOperation] = []
    for each in resource.configs:
        is_doubtful = each.config_operation == ConfigOperation.SUBTRACT and each.name in first.before
        (doubtful if is_doubtful else certain).append(each)
    if not doubtful:
        return (first,)
    trim = ConfigSchema().element
    trimmed = [replaced(each, value=",".join(map(trim, (each.value or "").split(",")))) for each in doubtful]
    requests = [replaced(resource, configs=configs) for configs in ([*certain, *trimmed], certain)]
    decisions = [first, *(config_decision(each, facts.configs, is_klamm=False) for each in requests)]
    return [each for index, each in enumerate(decisions) if each not in decisions[:index]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """State of a resource before its configs change."""

    configs: Mapping[str, ConfigEntry]
    replication_factor: int | None
    """Smallest number of replicas of a partition; None if the resource is not a topic."""
    is_klamm: bool
    """See ``config_decision``."""


async def _read(
    resources: Collection[Resource], context: FilterContext
) -> dict[tuple[int, str], _Facts | KafkaApiError]:
    """Return the state of each resource that has configs, or the error because of which it cannot be read."""
    keys = {resource_key(each) for each in resources if each.resource_type in CONFIGURED}
    configs, topics = await asyncio.gather(
        describe_configs(context.admin, keys),
        describe_topics(context.admin, [name for kind, name in keys if kind == ResourceType.TOPIC]),
    )
    is_klamm = False
    if any(map(_extends_lists, resources)):
        try:
            is_klamm = await _is_klamm(context)
        except CLUSTER_ERRORS as error:
            return dict.fromkeys(keys, KafkaApiError(error_text(error)))
    facts: dict[tuple[int, str], _Facts | KafkaApiError] = {}
    async for (kind, name), described in TimeSlice().over(configs.items()):
        topic = topics[name] if kind == ResourceType.TOPIC else None
        if isinstance(described, KafkaApiError):
            facts[kind, name] = described
        elif isinstance(topic, KafkaApiError):
            facts[kind, name] = topic
        else:
            factor = None if topic is None else min(map(len, topic.replicas))
            facts[kind, name] = _Facts(configs=described, replication_factor=factor, is_klamm=is_klamm)
    return facts


def _unknown_operations(request: Request) -> dict[tuple[int, str], ApiError]:
    """Return the errors of resources with an operation that does not exist.

    Kafka fails the whole request, and its active controller resigns. klamm's broker rejects the resource alone.
    """
    return {
        resource_key(resource): ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
        for resource in request.resources
        if isinstance(resource, IncrementalAlterConfigsRequest.AlterConfigsResource)
        for config in resource.configs
        if (operation := config.config_operation) not in _OPERATIONS
    }


def _repeated(request: Request) -> dict[tuple[int, str], ApiError]:
    """Return the errors of resources that an AlterConfigs request contains several times.

    Kafka never answers such a request. It rejects the resources in IncrementalAlterConfigs, and klamm's broker in both.
    """
    if not isinstance(request, AlterConfigsRequest):
        return {}
    error = ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    return {key: error for key, count in Counter(map(resource_key, request.resources)).items() if count > 1}


async def _gateway_settings(request: Request, context: FilterContext) -> dict[tuple[int, str], ApiError]:
    """Return the errors of resources of brokers that would get settings of the gateway's policies.

    Kafka stores configs that it does not know, so the change would have no effect. klamm's broker has the same
    settings, for its own policies.
    """
    names = {resource_key(each): name for each in request.resources if (name := _policy_setting(each))}
    if not names:
        return {}
    with contextlib.suppress(*CLUSTER_ERRORS):
        if await _is_klamm(context):
            return {}
    return {key: ApiError(ErrorCode.INVALID_CONFIG, _SET_IN_GATEWAY.format(name)) for key, name in names.items()}


def _extends_lists(resource: Resource) -> bool:
    return isinstance(resource, IncrementalAlterConfigsRequest.AlterConfigsResource) and any(
        each.config_operation in _OF_LISTS for each in resource.configs
    )


def is_klamm_cluster(cluster: ClusterDescription) -> bool:
    """Return whether the brokers of a cluster are klamm, also behind gateways.

    A gateway with client configs announces support for their feature on behalf of Kafka. Only klamm's broker also
    finalizes it.
    """
    return CLIENT_CONFIGS_FEATURE in cluster.finalized_features


async def _is_klamm(context: FilterContext) -> bool:
    return is_klamm_cluster(await context.admin.describe_cluster())


def _policy_setting(resource: Resource) -> str | None:
    """Return a setting of policies that a part of a request would set on brokers; None if there is none."""
    if resource.resource_type != ResourceType.BROKER:
        return None
    if isinstance(resource, AlterConfigsRequest.AlterConfigsResource):
        names = [each.name for each in resource.configs if each.value is not None]
    else:  # the value of DELETE has no meaning: Kafka's tools send an empty one
        names = [each.name for each in resource.configs if each.config_operation != ConfigOperation.DELETE]
    return next((name for name in names if name in SETTINGS), None)


def policy_of(api: AlterConfigsApi) -> PolicyApi:
    """Return how policies decide on one of the two APIs."""
    return change_policy(
        ALTER_CONFIG, api.request, api.response, lambda policies, turns: AlteredConfigs(policies, turns, api).handle
    )


# -- history

Values: TypeAlias = "Iterable[tuple[str, str | None, str | None]]"
"""Name, old and new value of changed configs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """State of the resources of a request before the change, as far as it could be read."""

    configs: Mapping[tuple[int, str], Mapping[str, ConfigEntry]]
    is_klamm: bool
    """See ``config_decision``. False if the request extends no list."""


async def _read_before(request: Request, context: FilterContext) -> _Before:
    """Return the present configs of the resources, as far as the request can change them."""
    wanted: dict[tuple[int, str], Collection[str] | None] = {}
    for resource in request.resources:
        if resource.resource_type not in CONFIGURED:
            continue
        names: set[str] | None = None
        if isinstance(resource, IncrementalAlterConfigsRequest.AlterConfigsResource):
            names = {each for config in resource.configs for each in (config.name, base_name(config.name))}
        wanted[resource_key(resource)] = names
    if not any(map(_extends_lists, request.resources)):
        return _Before(configs=await described_configs(context.admin, wanted), is_klamm=False)
    cluster = await in_time(context.admin.describe_cluster)
    if cluster is None:  # without the rules of the upstream, the new values are unknown
        return _Before(configs={}, is_klamm=False)
    is_klamm = is_klamm_cluster(cluster)
    of_broker = int(ResourceType.BROKER), str(cluster.controller_id)
    if inherits := is_klamm and _CLUSTER_DEFAULT in wanted:
        # Of the cluster default, only what is set is described. Lists that are not set start from what a broker has.
        wanted[of_broker] = {*(wanted.get(of_broker) or ()), *(wanted[_CLUSTER_DEFAULT] or ())}
    configs = await described_configs(context.admin, wanted, include_synonyms=True)
    if inherits and _CLUSTER_DEFAULT in configs:
        static = {name: _static(entry) for name, entry in configs.get(of_broker, {}).items()}
        configs[_CLUSTER_DEFAULT] = static | dict(configs[_CLUSTER_DEFAULT])
    return _Before(configs=configs, is_klamm=is_klamm)


def _static(entry: ConfigEntry) -> ConfigEntry:
    """Return a config of a broker without the values that are set dynamically."""
    synonyms = tuple([each for each in entry.synonyms if each.source not in _DYNAMIC])
    first = synonyms[0] if synonyms else ConfigSynonym(entry.name, None, ConfigSource.DEFAULT_CONFIG)
    return replace(entry, value=first.value, source=first.source, synonyms=synonyms)


def changes(
    request: Request,
    response: AlterConfigsResponse | IncrementalAlterConfigsResponse | None,
    before: _Before,
) -> Iterator[Change]:
    """Yield each config that a request names, and those that a replacement removes."""
    outcomes = Outcomes(None if response is None else response.responses, resource_key)
    for resource in request.resources:
        key = resource_key(resource)
        is_confirmed = outcomes.confirmed(key)
        if resource.resource_type in CONFIGURED and is_confirmed is not None:
            described = before.configs.get(key)
            values = _values(resource, described, is_klamm=before.is_klamm)
            yield from config_changes(identity_of(*key), values, described or {}, is_confirmed=is_confirmed)


def config_changes(
    key: tuple[int, str], values: Values, described: Mapping[str, ConfigEntry], *, is_confirmed: bool
) -> Iterator[Change]:
    """Yield the changes of a resource, without its secrets.

    Args:
        key: Type and name of the resource.
        values: Changed configs.
        described: Configs of the resource before the change, as far as they are known.
        is_confirmed: Whether the upstream has reported that it made the changes.
    """
    kind = ResourceType(key[0])
    for name, old, new in values:
        entry = described.get(name)
        if (kind is ResourceType.BROKER and is_secret(name)) or (entry is not None and entry.is_sensitive):
            yield Change(f"{kind.name}:{key[1]}", name, old and HIDDEN, new and HIDDEN, is_confirmed)
        else:
            yield Change(f"{kind.name}:{key[1]}", name, old, new, is_confirmed)


def _values(resource: Resource, described: Mapping[str, ConfigEntry] | None, *, is_klamm: bool) -> Values:
    if described is None:
        return _values_from_unknown(resource)
    try:
        decision = config_decision(resource, described, is_klamm=is_klamm)
    except KafkaApiError:  # the rules of the upstream differ from those known here
        return _values_from_unknown(resource)
    result = decision.result
    names = [*(config.name for config in resource.configs), *(change.name for change in decision.changes)]
    return [(name, decision.before.get(name), result.get(name)) for name in dict.fromkeys(names)]


def _values_from_unknown(resource: Resource) -> Values:
    """Yield what a resource's part of a request says, without the values before."""
    for config in resource.configs:
        operation = getattr(config, "config_operation", ConfigOperation.SET)
        new = UNKNOWN if operation in _OF_LISTS else None if operation == ConfigOperation.DELETE else config.value
        yield config.name, UNKNOWN, new


def recorded_of(api: AlterConfigsApi) -> RecordedApi:
    """Return how the history records one of the two APIs."""
    return RecordedApi(request=api.request, response=api.response, read=_read_before, changes=changes)
