"""Random requests to the config service: memory, store and descriptions stay consistent."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.broker.configs.rules import ResourceAlteration
from klamm.configs.definitions import broker_configs, group_configs, topic_configs
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.types import RESOURCE_TYPES
from tests.support.configs import ANNA, MemoryConfigStore, make_service, operation

if TYPE_CHECKING:
    from klamm.broker.configs.service import ConfigService

RESOURCES = [
    *((2, name) for name in ("t", "u", "missing", "", "bad name!")),
    *((4, name) for name in ("1", "01", "", "++1", "\u0661", "x")),
    *((8, name) for name in ("1", "2", "")),
    *((kind, name) for kind in (16, 32) for name in ("a", "", "\0")),
    *((kind, "x") for kind in (0, 1, 3, 99, -128)),
]
KNOWN = sorted({*topic_configs(), *broker_configs(), *group_configs(), "metrics", "match", "interval.ms", "root"})
NAMES = (
    st.sampled_from(KNOWN)
    | st.sampled_from(["", "listener.name.x.ssl.key.password", "listener.name..max.connections", "no.such"])
    | st.text(max_size=8)
)
VALUES = (
    st.none()
    | st.text(max_size=12)
    | st.integers().map(str)
    | st.floats().map(str)
    | st.sampled_from(
        [
            "compact",
            "delete",
            "compact,delete",
            ",",
            "0:1",
            "*",
            "true",
            "INFO",
            "9" * 5000,
            "client_id=a",
            "PT1H",
            "-1",
            "2000000",
        ]
    )
)
OPERATIONS = st.lists(st.builds(operation, NAMES, st.integers(min_value=-1, max_value=5), VALUES), max_size=4)
REPLACEMENTS = st.lists(st.tuples(NAMES, VALUES), max_size=4)


@st.composite
def alterations(draw: st.DrawFn) -> ResourceAlteration:
    kind, name = draw(st.sampled_from(RESOURCES))
    if draw(st.booleans()):
        return ResourceAlteration(resource_type=kind, resource_name=name, operations=tuple(draw(OPERATIONS)))
    return ResourceAlteration(
        resource_type=kind, resource_name=name, operations=None, replacement=tuple(draw(REPLACEMENTS))
    )


def picture(service: ConfigService) -> dict[tuple[int, str], tuple[object, ...]]:
    """Everything that descriptions say."""
    answers: dict[tuple[int, str], tuple[object, ...]] = {}
    for kind, name in RESOURCES:
        try:
            answers[kind, name] = service.describe(kind, name, None, node_id=1)
        except KafkaApiError as error:
            answers[kind, name] = (error.error_code, error.error_message)
    answers[0, "listed"] = tuple(tuple(service.resource_names(kind)) for kind in RESOURCE_TYPES)
    answers[0, "topics"] = tuple(sorted(service.topic_config(name).items(), key=str) for name in ("t", "u", "missing"))
    return answers


@pytest.mark.process  # takes seconds
@settings(deadline=None, max_examples=200 if os.environ.get("KLAMM_SOAK") else 8)
@given(st.lists(st.tuples(st.lists(alterations(), max_size=4), st.booleans()), max_size=4))
def test_memory_store_and_descriptions_agree_after_any_requests(
    requests: list[tuple[list[ResourceAlteration], bool]],
) -> None:
    """K339-18: All-or-nothing per resource: any bad op means no op of that resource is applied.

    K339-20: Every requested resource appears once in the response.

    K339-21: validate_only=true validates (same errors) but changes nothing.

    K339-38: Changes survive a broker restart.
    """

    async def scenario() -> None:
        store = MemoryConfigStore(topics=["t", "u"])
        service = make_service(store)
        for request, validate_only in requests:
            before, commits = picture(service), len(store.committed)
            outcomes = await service.alter(request, node_id=1, author=ANNA, validate_only=validate_only)
            assert len(outcomes) == len(request)
            if validate_only or all(outcomes):
                assert len(store.committed) == commits
            if validate_only:
                assert picture(service) == before
            levels = service.describe(8, "1", None, node_id=1)
            again = make_service(store)
            restarted = picture(again)
            restarted[8, "1"] = levels  # levels are not kept
            assert picture(service) == restarted

    asyncio.run(scenario())
