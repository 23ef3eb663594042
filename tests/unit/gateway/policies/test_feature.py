"""The interceptors that a gateway gets for its policies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from klamm.gateway.apis.table import POLICIES, UNFILTERED
from klamm.gateway.policies.feature import PolicyFeature
from klamm.policy import PolicyLoadError
from klamm.protocol.api import ApiKey

if TYPE_CHECKING:
    from pathlib import Path

RULES = "klamm.policy.rules:RulesPolicy"


async def intercepted(**configs: str) -> tuple[set[int], frozenset[int]]:
    interception = await PolicyFeature.load(
        {key.replace("_", "."): value for key, value in configs.items()}, POLICIES, UNFILTERED
    )
    await interception.close()
    return set(interception.filters), interception.withheld


def test_gateway_without_policy_has_no_filters() -> None:
    assert asyncio.run(intercepted()) == (set(), frozenset())


@pytest.mark.parametrize(
    ("key", "apis"),
    [
        ("create_topic", {ApiKey.METADATA, ApiKey.CREATE_TOPICS}),
        ("alter_config", {ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS}),
        ("create_partitions", {ApiKey.CREATE_PARTITIONS, ApiKey.ALTER_PARTITION_REASSIGNMENTS}),
        ("delete_topic", {ApiKey.DELETE_TOPICS}),
    ],
)
def test_policy_filters_the_apis_of_its_kind(tmp_path: Path, key: str, apis: set[int]) -> None:
    (tmp_path / "rules.yaml").write_text("rules: []")
    configs = {f"{key}_policy_class_name": RULES, "policy_rules_file": str(tmp_path / "rules.yaml")}
    keys, withheld = asyncio.run(intercepted(**configs))
    # the settings of the policies must not be stored upstream, whatever the policies decide on
    assert keys == apis | {ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS}
    # the API by which Kafka Streams creates topics is not offered while a policy decides on topics
    assert withheld == ({88} if key == "create_topic" else frozenset())


def test_policy_that_cannot_be_loaded_prevents_start() -> None:
    with pytest.raises(PolicyLoadError, match=r"policy\.rules\.file is not set"):
        asyncio.run(intercepted(delete_topic_policy_class_name=RULES))
