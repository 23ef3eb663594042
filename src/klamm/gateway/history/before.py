"""State of the upstream just before a change, read with the gateway's own credentials.

Nothing here fails: what cannot be read in time is missing in the result, and the history shows it as unknown.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.admin import ClientQuotaFilter, ClientQuotaFilterComponent, ConfigResource
from klamm.gateway.policies.facts import outcomes
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_words
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from klamm.admin import AdminClient, ConfigEntry, ScramCredentialInfo, TopicDescription
    from klamm.admin.results import PerKeyResult
    from klamm.configs.quotas import QuotaEntity

Key = TypeVar("Key")
Value = TypeVar("Value")

logger = logging.getLogger(__name__)

READ_S: Final = 5.0
"""Seconds that a change may wait for a response with the state before it."""
MAX_READ_S: Final = 10.0
"""Seconds for all responses together. Only requests for thousands of resources need more than one."""
_AT_ONCE: Final = 500
"""Number of resources in one request. A response with the configs of more topics would hold up all other work."""


async def described_configs(
    admin: AdminClient, wanted: Mapping[tuple[int, str], Collection[str] | None], *, include_synonyms: bool = False
) -> dict[tuple[int, str], Mapping[str, ConfigEntry]]:
    """Return the configs of resources.

    Args:
        admin: Admin client with the gateway's own credentials.
        wanted: Names of the configs to read, by type and name of the resource. None reads all.
        include_synonyms: Whether to read the defaults, too.
    """
    names = {ConfigResource(ResourceType(kind), name): keys for (kind, name), keys in wanted.items()}

    def look_up(some: Collection[ConfigResource]) -> PerKeyResult[ConfigResource, Mapping[str, ConfigEntry]]:
        keys = {each: names[each] for each in some}
        return admin.describe_configs(keys, include_synonyms=include_synonyms, is_current=True)

    described = await _read_all(look_up, names)
    return {(int(resource.type), resource.name): configs for resource, configs in described.items()}


async def described_topics(admin: AdminClient, names: Iterable[str]) -> dict[str, TopicDescription]:
    """Return the descriptions of topics."""
    return await _read_all(partial(admin.describe_topics, is_current=True), dict.fromkeys(names))


async def described_credentials(
    admin: AdminClient, users: Iterable[str]
) -> dict[str, tuple[ScramCredentialInfo, ...] | KafkaApiError]:
    """Return the SCRAM credentials of users. Users without credentials have the error RESOURCE_NOT_FOUND."""
    return await in_time(lambda: outcomes(admin.describe_user_scram_credentials(dict.fromkeys(users)))) or {}


async def described_quotas(
    admin: AdminClient, entities: Collection[QuotaEntity]
) -> Mapping[QuotaEntity, Mapping[str, float]] | None:
    """Return the quotas of entities that have any; None if they cannot be read."""
    wanted = ClientQuotaFilter()
    if len(entities) == 1:
        (entity,) = entities
        conditions = [
            ClientQuotaFilterComponent.of_default_entity(kind)
            if name is None
            else ClientQuotaFilterComponent.of_entity(kind, name)
            for kind, name in entity
        ]
        wanted = ClientQuotaFilter(tuple(conditions), strict=True)
    described = await in_time(lambda: admin.describe_client_quotas(wanted, is_current=True))
    return None if described is None else {entity.parts: quotas for entity, quotas in described.items()}


async def in_time(look_up: Callable[[], Awaitable[Value]]) -> Value | None:
    """Return what the upstream responds to a request; None if it fails or takes too long."""
    try:
        async with asyncio.timeout(READ_S):
            return await look_up()
    except CLUSTER_ERRORS as error:
        _log(error)
        return None


async def _read_all(
    look_up: Callable[[Collection[Key]], PerKeyResult[Key, Value]], keys: Collection[Key]
) -> dict[Key, Value]:
    """Return the values that can be read. The first request without a response in time is the last one."""
    values: dict[Key, Value] = {}
    clock = asyncio.get_running_loop().time
    deadline = clock() + MAX_READ_S
    try:
        remaining = iter(keys)
        while some := list(islice(remaining, _AT_ONCE)):
            async with asyncio.timeout_at(min(clock() + READ_S, deadline)):
                read = await outcomes(look_up(some))
                values |= {key: each for key, each in read.items() if not isinstance(each, KafkaApiError)}
    except CLUSTER_ERRORS as error:
        _log(error)
    return values


def _log(error: Exception) -> None:
    logger.warning(
        "The state before a change cannot be read, so the history lacks old values: %s",
        error_words(error),
    )
