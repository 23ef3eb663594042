"""DescribeConfigs (key 32), v1-4.

Resource types: topic (2), broker (4, the id that was asked or "" for the cluster default), broker logger (8), client
metrics (16), group (32). Values of secrets are never returned; synonyms and documentation only on request. As in Kafka,
a resource of an unknown type fails all resources. The response is sent when the values it contains are durable. v4 is
flexible.
Requires DESCRIBE_CONFIGS on the topic or the group, for other types on the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from klamm.broker.requests.checks import config_denial
from klamm.configs.describe import documentation, select_keys
from klamm.configs.names import identity_of
from klamm.configs.operations import MAX_VALUE_BYTES, is_too_long
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.codec import NO_TAGS, encode, with_items
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.types import RESOURCE_TYPES, ResourceType
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.broker.context import RequestContext
    from klamm.configs.describe import DescribedConfig

_ToWire: TypeAlias = "Callable[[int, DescribedConfig], DescribeConfigsResponse.DescribeConfigsResourceResult]"

_Described: TypeAlias = "dict[tuple[int, str, tuple[str, ...]], tuple[DescribedConfig, ...]]"
"""Descriptions of a request by resource type, name and requested keys (empty: all)."""

_Shared: TypeAlias = "dict[tuple[int, tuple[DescribedConfig, ...]], tuple[DescribedConfig, ...]]"
"""One object for all equal descriptions of a request, by resource type and description."""

API: Final = Api(key=ApiKey.DESCRIBE_CONFIGS, min_version=1, max_version=4)

_TYPES: Final = frozenset(RESOURCE_TYPES)
_MALFORMED: Final = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)


class _TooLongError(KafkaApiError):
    """A value is too long for a response. As in Kafka, all resources fail with this code."""

    error_code = ErrorCode.UNKNOWN_SERVER_ERROR


class _Result(NamedTuple):
    """Entry of a resource without its configs."""

    head: DescribeConfigsResponse.DescribeConfigsResult
    configs: tuple[DescribedConfig, ...]


class DescribeConfigsAnswer:
    """Response that encodes equal configs once, however many topics share them."""

    def __init__(self, results: Sequence[_Result], to_wire: _ToWire) -> None:
        self.results = results
        self.to_wire = to_wire
        self.throttle_time_ms = 0

    def is_flexible(self, version: int) -> bool:
        """Return whether the response has compact types and tagged fields."""
        return DescribeConfigsResponse.is_flexible(version)

    def error_codes(self) -> tuple[int, ...]:
        """Return the error code of each resource."""
        return tuple(result.head.error_code for result in self.results)

    def buffers(self, version: int) -> Sequence[bytes | bytearray]:
        """Return the encoded body in pieces.

        Resources with the same configs share one piece. A request of 100 KB can name a broker 20,000 times, and a copy
        of its configs for each of them would take a gigabyte.
        """
        flexible = self.is_flexible(version)
        written: dict[int, bytearray] = {}
        joined: dict[int, tuple[bytes, str | None]] = {}

        def write(kind: int, config: DescribedConfig) -> bytearray:
            # The results keep the descriptions alive, so their ids (``id()``) are unique while this runs.
            encoded = written.get(id(config))
            if encoded is None:
                wire = self.to_wire(kind, config)
                _check_lengths(wire)
                encoded = written[id(config)] = encode(wire, version, flexible=flexible)
            return encoded

        none_yet = DescribeConfigsResponse(throttle_time_ms=self.throttle_time_ms, results=[])
        pieces: list[bytes | bytearray] = []
        head = bytearray(with_items(encode(none_yet, version), len(self.results), (), flexible))
        for result in self.results:
            configs, kind = result.configs, result.head.resource_type
            if id(configs) not in joined:
                try:
                    joined[id(configs)] = b"".join([write(kind, config) for config in configs]), None
                except _TooLongError as error:
                    joined[id(configs)] = b"", error.error_message
            body, failure = joined[id(configs)]
            if failure is not None:
                configs = ()
                result.head.error_code, result.head.error_message = _TooLongError.error_code, failure
            head += with_items(encode(result.head, version, flexible=flexible), len(configs), (), flexible)
            if body:
                pieces += (head, body)
                head = bytearray()
            if flexible:
                head += NO_TAGS
        if flexible:
            head += NO_TAGS
        return [*pieces, head]


async def handle(request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsAnswer:
    """Return one entry per resource, in the order of the request."""
    to_wire = _converter(request)
    if any(resource.resource_type not in _TYPES for resource in request.resources):
        rejected = await context.time_slice.listed(
            _rejected(resource, ErrorCode.INVALID_REQUEST, _MALFORMED) for resource in request.resources
        )
        return DescribeConfigsAnswer(rejected, to_wire)
    configs = context.services.configs
    while True:
        rollbacks = configs.revision.rollbacks
        described: _Described = {}
        shared: _Shared = {}
        results = [
            _describe(resource, context, described, shared)
            async for resource in context.time_slice.over(request.resources)
        ]
        if await configs.settle() and configs.revision.rollbacks == rollbacks:
            return DescribeConfigsAnswer(results, to_wire)
        # A commit failed, so the values read before were rolled back. The current values are durable.


def _describe(
    resource: DescribeConfigsRequest.DescribeConfigsResource,
    context: RequestContext,
    described: _Described,
    shared: _Shared,
) -> _Result:
    """Describe a resource. One that a request names a thousand times, with five bytes each, is described once.

    Equal descriptions are kept once as well: a group or a subscription of any name has one. Topics exist, and those
    without configs of their own share one already.
    """
    kind, name = identity_of(resource.resource_type, resource.resource_name)
    try:
        denied = config_denial(context, AclOperation.DESCRIBE_CONFIGS, kind, resource.resource_name)
        if denied is not None:
            return _rejected(resource, denied.error_code, denied.error_message)
        everything = described.get((kind, name, ()))
        if everything is None:
            everything = context.services.configs.describe(kind, resource.resource_name, None, node_id=context.node_id)
            if kind != ResourceType.TOPIC:
                everything = shared.setdefault((kind, everything), everything)
            described[kind, name, ()] = everything
    except KafkaApiError as error:
        return _rejected(resource, error.error_code, error.error_message)
    keys = tuple(resource.configuration_keys or ())
    configs = described.get((kind, name, keys))
    if configs is None:
        configs = select_keys(everything, keys)
        if keys:
            configs = shared.setdefault((kind, configs), configs)
        described[kind, name, keys] = configs
    head = DescribeConfigsResponse.DescribeConfigsResult(
        error_code=ErrorCode.NONE,
        error_message="",
        resource_type=kind,
        resource_name=resource.resource_name,
        configs=[],
    )
    return _Result(head, configs)


def _rejected(
    resource: DescribeConfigsRequest.DescribeConfigsResource, error_code: ErrorCode, error_message: str | None
) -> _Result:
    head = DescribeConfigsResponse.DescribeConfigsResult(
        error_code=error_code,
        error_message=error_message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[],
    )
    return _Result(head, ())


def _check_lengths(config: DescribeConfigsResponse.DescribeConfigsResourceResult) -> None:
    """Reject values that do not fit into a response. Only a properties file can contain such a value."""
    for value in (config.value, *(synonym.value for synonym in config.synonyms)):
        if value is not None and is_too_long(value):
            raise _TooLongError(
                f"A value of {config.name} has more than {MAX_VALUE_BYTES} bytes and fits no response: ask for other"
                " keys only, or shorten it in the broker's properties"
            )


def _converter(request: DescribeConfigsRequest) -> _ToWire:
    """Return the function that converts a description into a response struct."""
    document = documentation if request.include_documentation else _no_documentation

    def to_wire(kind: int, config: DescribedConfig) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
        return DescribeConfigsResponse.DescribeConfigsResourceResult(
            name=config.name,
            value=config.value,
            read_only=config.is_read_only,
            config_source=config.source,
            is_sensitive=config.is_sensitive,
            synonyms=[
                DescribeConfigsResponse.DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source)
                for s in (config.synonyms if request.include_synonyms else ())
            ],
            config_type=config.config_type,
            documentation=document(kind, config.name),
        )

    return to_wire


def _no_documentation(_kind: int, _name: str) -> None:
    return None


ROUTE: Final = Route(api=API, request=DescribeConfigsRequest, handle=handle)
