from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.history.change import RecordedChange
from klamm.storage.metadata.changes import (
    Change,
    DropConfigs,
    DropGroup,
    DropGroupOffset,
    DropTopic,
    PutClientConfig,
    PutConfig,
    PutGroup,
    PutGroupOffset,
    PutSetting,
    PutTopic,
)
from klamm.storage.metadata.store import MetadataStore
from tests.support.metadata import load_history

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Model:
    """Expected state after the changes, as dictionaries."""

    topics: dict[UUID, PutTopic] = field(default_factory=dict)
    configs: dict[Any, PutConfig] = field(default_factory=dict)
    client_configs: dict[Any, PutClientConfig] = field(default_factory=dict)
    groups: dict[str, PutGroup] = field(default_factory=dict)
    offsets: dict[Any, PutGroupOffset] = field(default_factory=dict)
    settings: dict[str, PutSetting] = field(default_factory=dict)
    history: list[RecordedChange] = field(default_factory=list)

    def apply(self, change: Change) -> None:  # noqa: C901, PLR0912 - one case per kind of change
        match change:
            case PutTopic():
                self.topics[change.topic_id] = change
            case DropTopic():
                topic = self.topics.pop(change.topic_id, None)
                self.offsets = {k: v for k, v in self.offsets.items() if v.topic_id != change.topic_id}
                if topic is not None:
                    self._drop_configs(2, topic.name)
            case PutConfig(value=None):
                self.configs.pop((change.resource_type, change.resource_name, change.name), None)
            case PutConfig():
                self.configs[change.resource_type, change.resource_name, change.name] = change
            case DropConfigs():
                self._drop_configs(change.resource_type, change.resource_name)
            case PutClientConfig():
                key = (change.user, change.has_client_id, change.client_id, change.name)
                self.client_configs.pop(key, None)
                if change.value is not None:
                    self.client_configs[key] = change
            case PutGroup():
                self.groups[change.group_id] = change
            case DropGroup():
                self.groups.pop(change.group_id, None)
                self.offsets = {k: v for k, v in self.offsets.items() if v.group_id != change.group_id}
            case PutGroupOffset():
                self.offsets[change.group_id, change.topic_id, change.partition] = change
            case DropGroupOffset():
                self.offsets.pop((change.group_id, change.topic_id, change.partition), None)
            case PutSetting():
                self.settings[change.name] = change
            case RecordedChange():
                self.history.insert(0, change)

    def _drop_configs(self, resource_type: int, resource_name: str) -> None:
        self.configs = {k: v for k, v in self.configs.items() if k[:2] != (resource_type, resource_name)}


texts = st.text(st.characters(codec="utf-8"), max_size=6)
names = st.sampled_from(["", "a", "b", "ä\x00ö", "c'\"d"])
topic_ids = st.integers(1, 3).map(lambda number: UUID(int=number << 60))
int64s = st.integers(-(2**63), 2**63 - 1)

topics = st.builds(
    lambda topic_id, is_internal, partitions: PutTopic(
        topic_id=topic_id, name=f"topic-{topic_id}", is_internal=is_internal, partitions=partitions
    ),
    topic_ids,
    st.booleans(),
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
)
resource_names = st.one_of(names, topic_ids.map(lambda topic_id: f"topic-{topic_id}"))
client_configs = st.builds(
    lambda user, client_id, name, value: PutClientConfig(
        user=user, client_id=client_id[1], has_client_id=client_id[0], name=name, value=value
    ),
    st.none() | names,
    st.sampled_from([(False, None), (True, None), (True, ""), (True, "a")]),
    names,
    st.none() | texts,
)
changes = st.one_of(
    topics,
    st.builds(DropTopic, topic_id=topic_ids),
    st.builds(PutConfig, resource_type=st.sampled_from([2, 4]), resource_name=resource_names, name=names, value=texts),
    st.builds(
        PutConfig, resource_type=st.sampled_from([2, 4]), resource_name=resource_names, name=names, value=st.none()
    ),
    st.builds(DropConfigs, resource_type=st.sampled_from([2, 4]), resource_name=resource_names),
    client_configs,
    st.builds(PutGroup, group_id=names, payload=st.binary(max_size=9)),
    st.builds(DropGroup, group_id=names),
    st.builds(
        PutGroupOffset,
        group_id=names,
        topic_id=topic_ids,
        partition=st.integers(0, 2),
        offset=int64s,
        leader_epoch=st.integers(-1, 9),
        metadata=texts,
        commit_timestamp_ms=int64s,
        expire_timestamp_ms=st.none() | int64s,
    ),
    st.builds(DropGroupOffset, group_id=names, topic_id=topic_ids, partition=st.integers(0, 2)),
    st.builds(PutSetting, name=names, value=texts),
    st.builds(
        RecordedChange,
        at_ms=int64s,
        resource=names,
        name=names,
        old=st.none() | texts,
        new=st.none() | texts,
        principal=names,
        client_id=st.none() | names,
    ),
)


def assert_holds(store: MetadataStore, model: Model) -> None:
    assert {topic.topic_id: topic for topic in store.load_topics()} == model.topics
    assert {(c.resource_type, c.resource_name, c.name): c for c in store.load_configs()} == model.configs
    assert {
        (c.user, c.has_client_id, c.client_id, c.name): c for c in store.load_client_configs()
    } == model.client_configs
    assert {group.group_id: group for group in store.load_groups()} == model.groups
    assert {(o.group_id, o.topic_id, o.partition): o for o in store.load_group_offsets()} == model.offsets
    assert {setting.name: setting for setting in store.load_settings()} == model.settings
    assert load_history(store) == model.history


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(changes, max_size=6), st.booleans()), max_size=12))
def test_any_sequence_of_changes_loads_the_resulting_state(steps: Sequence[tuple[list[Change], bool]]) -> None:
    """However the changes are spread over submissions and commits."""
    model = Model()

    async def run(path: Path) -> None:
        store = MetadataStore.open(path)
        for step, waits in steps:
            future = store.submit(step)
            for change in step:
                model.apply(change)
            if waits:
                await future
                assert_holds(store, model)
        await store.close()
        again = MetadataStore.open(path)
        assert_holds(again, model)
        await again.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory) / "metadata.sqlite"))
