"""Changes that CreateTopics (key 19), DeleteTopics (key 20) and CreatePartitions (key 37) make.

A new topic has its number of partitions and the configs that the request sets. A deleted one loses all that it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from klamm.gateway.history.before import described_configs, described_topics
from klamm.gateway.history.configs import config_changes
from klamm.gateway.history.recorded_api import Change, Outcomes, RecordedApi
from klamm.gateway.policies.delete_topics import names_of, wanted_of
from klamm.gateway.policies.facts import own_configs
from klamm.history.change import PARTITIONS, UNKNOWN
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from klamm.admin import ConfigEntry
    from klamm.gateway.relay.filter import FilterContext


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBefore:
    """Topic before its deletion."""

    name: str
    partitions: str
    """Number of its partitions, or ``UNKNOWN``."""
    configs: Mapping[str, ConfigEntry]
    """Empty if they cannot be read."""


async def _read_nothing(_request: CreateTopicsRequest, _context: FilterContext) -> None:
    """Return nothing: there was no such topic before."""


def created(request: CreateTopicsRequest, response: CreateTopicsResponse | None, _before: None) -> Iterator[Change]:
    """Yield the number of partitions and the configs of each new topic."""
    entries = {} if response is None else {entry.name: entry for entry in response.topics}
    outcomes = Outcomes(None if response is None else response.topics, attrgetter("name"))
    for topic in request.topics:
        is_confirmed = outcomes.confirmed(topic.name)
        if is_confirmed is None:
            continue
        entry = entries.get(topic.name)
        counts = (0 if entry is None else entry.num_partitions, len(topic.assignments), topic.num_partitions)
        count = next((str(each) for each in counts if each > 0), UNKNOWN)
        yield Change(_resource(topic.name), PARTITIONS, None, count, is_confirmed)
        values = [(config.name, None, config.value) for config in topic.configs if config.value is not None]
        yield from config_changes((ResourceType.TOPIC, topic.name), values, {}, is_confirmed=is_confirmed)


async def _read_deleted(request: DeleteTopicsRequest, context: FilterContext) -> Mapping[str | UUID, TopicBefore]:
    """Return the topics that a request names, by the name or the id that it has for them."""
    wanted = [each for each in wanted_of(request, context.api_version) if each.is_valid]
    ids = [each.topic_id for each in wanted if each.name is None]
    by_id = await names_of(ids, context) if ids else {}
    names: dict[str | UUID, str] = {each.name: each.name for each in wanted if each.name is not None}
    names.update(by_id.items())
    described = await described_topics(context.admin, names.values())
    configs = await described_configs(context.admin, {(ResourceType.TOPIC, name): None for name in described})
    return {
        key: TopicBefore(
            name=name,
            partitions=str(len(described[name].partitions)) if name in described else UNKNOWN,
            configs=configs.get((ResourceType.TOPIC, name), {}),
        )
        for key, name in names.items()
    }


def deleted(
    _request: DeleteTopicsRequest, response: DeleteTopicsResponse | None, before: Mapping[str | UUID, TopicBefore]
) -> Iterator[Change]:
    """Yield the number of partitions and the configs of each deleted topic."""
    outcomes = Outcomes(None if response is None else response.responses, attrgetter("topic_id"), attrgetter("name"))
    for key, topic in before.items():
        is_confirmed = outcomes.confirmed(key)
        if is_confirmed is None:
            continue
        yield Change(_resource(topic.name), PARTITIONS, topic.partitions, None, is_confirmed)
        own = own_configs(ResourceType.TOPIC, topic.name, topic.configs)
        values = [(name, value, None) for name, value in own.items()]
        yield from config_changes((ResourceType.TOPIC, topic.name), values, topic.configs, is_confirmed=is_confirmed)


async def _read_counts(request: CreatePartitionsRequest, context: FilterContext) -> Mapping[str, int]:
    """Return the present number of partitions of the topics."""
    described = await described_topics(context.admin, [topic.name for topic in request.topics])
    return {name: len(topic.partitions) for name, topic in described.items()}


def grown(
    request: CreatePartitionsRequest, response: CreatePartitionsResponse | None, before: Mapping[str, int]
) -> Iterator[Change]:
    """Yield the number of partitions of each topic that got more."""
    outcomes = Outcomes(None if response is None else response.results, attrgetter("name"))
    for topic in request.topics:
        is_confirmed = outcomes.confirmed(topic.name)
        if is_confirmed is not None:
            old = str(before.get(topic.name, UNKNOWN))
            yield Change(_resource(topic.name), PARTITIONS, old, str(topic.count), is_confirmed)


def _resource(name: str) -> str:
    return f"{ResourceType.TOPIC.name}:{name}"


APIS: Final = (
    RecordedApi(request=CreateTopicsRequest, response=CreateTopicsResponse, read=_read_nothing, changes=created),
    RecordedApi(request=DeleteTopicsRequest, response=DeleteTopicsResponse, read=_read_deleted, changes=deleted),
    RecordedApi(request=CreatePartitionsRequest, response=CreatePartitionsResponse, read=_read_counts, changes=grown),
)
