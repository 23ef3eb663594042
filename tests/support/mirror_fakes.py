"""Clusters in memory, for the mirror's control loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.mirror.model import (
    AdminIncompatibleError,
    AdminRefusedError,
    ClusterAwayError,
    MirrorAdmin,
    NewRemoteTopic,
    TopicConfigEntry,
    TopicConfigOperation,
    TopicSummary,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.security.acls import Acl

SET_ON_TOPIC = 1


class FakeCluster(MirrorAdmin):
    """Topics with their own configs, in memory."""

    def __init__(self, **partition_counts: int) -> None:
        self.topics = dict(partition_counts)
        self.configs: dict[str, dict[str, str]] = {name: {} for name in partition_counts}
        self.created: list[NewRemoteTopic] = []
        self.refuses: dict[str, AdminRefusedError] = {}
        self.away: Callable[[], bool] = lambda: False
        self.incompatible = False
        self.keeps_no_acls = False
        self.unknown: frozenset[str] = frozenset()
        """Names of configs that this cluster does not know."""
        self.acls: list[Acl] = []
        self.unlisted: set[str] = set()
        """Topics that are there but not listed: the broker that is asked has not heard of them."""
        self.denied: set[str] = set()
        """Topics that the principal may not describe."""

    def check_reachable(self) -> None:
        pass

    def list_topics(self) -> Mapping[str, TopicSummary]:
        if self.away():
            raise ClusterAwayError("nobody answers")
        listed = {name: count for name, count in self.topics.items() if name not in self.unlisted | self.denied}
        return {n: TopicSummary(name=n, topic_id="", partition_count=c) for n, c in listed.items()}

    def denied_topics(self, topics: Sequence[str]) -> Mapping[str, AdminRefusedError]:
        return {name: AdminRefusedError("TOPIC_AUTHORIZATION_FAILED", "") for name in topics if name in self.denied}

    def describe_topic_configs(
        self, topics: Sequence[str]
    ) -> Mapping[str, tuple[TopicConfigEntry, ...] | AdminRefusedError]:
        return {
            topic: tuple(
                TopicConfigEntry(name=name, value=value, config_source=SET_ON_TOPIC)
                for name, value in self.configs.get(topic, {}).items()
            )
            for topic in topics
        }

    def create_topics(
        self, topics: Sequence[NewRemoteTopic], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        outcomes: dict[str, AdminRefusedError | None] = {}
        for topic in topics:
            outcomes[topic.name] = self.refuses.get(topic.name)
            if self.unknown & topic.configs.keys():
                outcomes[topic.name] = AdminRefusedError("INVALID_CONFIG", "Unknown topic config name")
            elif topic.name in self.topics:
                outcomes[topic.name] = AdminRefusedError("TOPIC_ALREADY_EXISTS", "")
            elif topic.name not in self.refuses and not validate_only:
                self.created.append(topic)
                self.topics[topic.name] = topic.partition_count
                self.configs[topic.name] = dict(topic.configs)
        return outcomes

    def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        grown = {name: count for name, count in counts.items() if name not in self.refuses}
        self.topics |= {} if validate_only else grown
        return {name: self.refuses.get(name) for name in counts}

    def check_incremental_alter_configs(self, topic: str) -> None:
        if self.incompatible:
            raise AdminIncompatibleError("not offered")

    def incremental_alter_topic_configs(
        self, operations: Mapping[str, Sequence[TopicConfigOperation]], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        _ = validate_only
        return {name: self.refuses.get(name) for name in operations}

    def alter_topic_configs(self, configs: Mapping[str, Mapping[str, str]]) -> Mapping[str, AdminRefusedError | None]:
        raise NotImplementedError

    def describe_topic_acls(self) -> Sequence[Acl]:
        if self.keeps_no_acls:
            raise AdminRefusedError("SECURITY_DISABLED", "no authorizer")
        return self.acls

    def create_acls(self, acls: Sequence[Acl]) -> Mapping[Acl, AdminRefusedError | None]:
        self.acls += [acl for acl in acls if acl not in self.acls]
        return dict.fromkeys(acls)

    def close(self) -> None:
        pass
