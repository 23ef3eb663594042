from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import pytest

from klamm.mirror.errors import FlowFailedError
from klamm.mirror.model import (
    AdminIncompatibleError,
    AdminRefusedError,
    MirrorAdmin,
    NewRemoteTopic,
    TopicConfigEntry,
    TopicConfigOperation,
    TopicSummary,
)
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.config_sync import ConfigSync

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.mirror.settings.flow import FlowSettings
    from klamm.security.acls import Acl

SET_ON_TOPIC, DEFAULT = 1, 5


class FakeAdmin(MirrorAdmin):
    """One cluster's topic configs in memory."""

    def __init__(self, configs: Mapping[str, Mapping[str, str]], *, incremental: bool = True) -> None:
        self.configs = {topic: dict(own) for topic, own in configs.items()}
        self.incremental = incremental
        self.refuses: dict[str, AdminRefusedError] = {}
        self.hides: set[str] = set()
        self.missing: set[str] = set()
        self.calls: list[str] = []

    def describe_topic_configs(
        self, topics: Sequence[str]
    ) -> Mapping[str, tuple[TopicConfigEntry, ...] | AdminRefusedError]:
        self.calls.append("describe")
        denied, unknown = (
            AdminRefusedError(name, "") for name in ("TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PARTITION")
        )
        return {
            topic: denied if topic in self.hides else unknown if topic in self.missing else self._entries(topic)
            for topic in topics
        }

    def _entries(self, topic: str) -> tuple[TopicConfigEntry, ...]:
        defaults = {"retention.ms": "604800000", "cleanup.policy": "delete", "min.insync.replicas": "1"}
        own = self.configs[topic]
        return tuple(
            TopicConfigEntry(
                name=name, value=own.get(name, value), config_source=SET_ON_TOPIC if name in own else DEFAULT
            )
            for name, value in defaults.items()
        )

    def check_incremental_alter_configs(self, topic: str) -> None:
        self.calls.append(f"check {topic}")
        if not self.incremental:
            raise AdminIncompatibleError("IncrementalAlterConfigs is not offered")

    def incremental_alter_topic_configs(
        self, operations: Mapping[str, Sequence[TopicConfigOperation]], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        assert not validate_only
        self.calls.append("incremental")
        for topic, planned in operations.items():
            if topic in self.refuses:
                continue
            for operation in planned:
                if operation.value is None:
                    self.configs[topic].pop(operation.name, None)
                else:
                    self.configs[topic][operation.name] = operation.value
        return {topic: self.refuses.get(topic) for topic in operations}

    def alter_topic_configs(self, configs: Mapping[str, Mapping[str, str]]) -> Mapping[str, AdminRefusedError | None]:
        self.calls.append("alter")
        for topic, complete in configs.items():
            self.configs[topic] = dict(complete)
        return dict.fromkeys(configs)

    def check_reachable(self) -> None:
        pass

    def list_topics(self) -> Mapping[str, TopicSummary]:
        return {name: TopicSummary(name=name, topic_id="", partition_count=1) for name in self.configs}

    def denied_topics(self, topics: Sequence[str]) -> Mapping[str, AdminRefusedError]:
        raise NotImplementedError

    def create_topics(
        self, topics: Sequence[NewRemoteTopic], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        raise NotImplementedError

    def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        raise NotImplementedError

    def describe_topic_acls(self) -> Sequence[Acl]:
        raise NotImplementedError

    def create_acls(self, acls: Sequence[Acl]) -> Mapping[Acl, AdminRefusedError | None]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class VendorAdmin(FakeAdmin):
    """A cluster whose topics have a config of its vendor's."""

    value = "1"

    def _entries(self, topic: str) -> tuple[TopicConfigEntry, ...]:
        own = TopicConfigEntry(name="vendor.key", value=self.value, config_source=SET_ON_TOPIC)
        return (*super()._entries(topic), own)


def flow(mode: str = "requested") -> FlowSettings:
    return parse_settings(
        {
            "clusters": "A,B",
            "A.bootstrap.servers": "a:1",
            "B.bootstrap.servers": "b:1",
            "A->B.enabled": "true",
            "use.incremental.alter.configs": mode,
        }
    ).flows[0]


def source() -> FakeAdmin:
    return FakeAdmin({"t": {"retention.ms": "5"}, "u": {}})


def target(*, incremental: bool = True) -> FakeAdmin:
    return FakeAdmin(
        {"A.t": {"min.insync.replicas": "2", "cleanup.policy": "compact"}, "A.u": {}}, incremental=incremental
    )


def test_requested_writes_with_incremental_alter_configs_and_leaves_excluded_ones() -> None:
    """K894-04: requested: topic configs are written with IncrementalAlterConfigs.

    K894-10: MirrorMaker must not clear target topic configs that are excluded from replication.

    K894-13: Incremental + shouldReplicateSourceDefault false: a prop that is default on the source topic is DELETEd on
    the target.
    """
    there = target()
    ConfigSync(flow(), source(), there).run(["t", "u"])
    assert there.configs == {"A.t": {"min.insync.replicas": "2", "retention.ms": "5"}, "A.u": {}}
    assert there.calls == ["check A.t", "describe", "incremental"]


def test_requested_falls_back_at_once_for_good_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """K894-05: requested + incompatible target: fall back to AlterConfigs for subsequent calls.

    K894-06: The fallback logs WARN "The target cluster <ALIAS> is not compatible with IncrementalAlterConfigs API.
    Therefore using deprecated AlterConfigs API for syncing ...".
    """
    there = target(incremental=False)
    sync = ConfigSync(flow(), source(), there)
    with caplog.at_level(logging.WARNING):
        sync.run(["t"])
        sync.run(["t"])
    assert there.calls == ["check A.t", "alter", "alter"]
    assert there.configs["A.t"] == {"retention.ms": "5"}
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        "The target cluster B is not compatible with IncrementalAlterConfigs API. Therefore using deprecated "
        "AlterConfigs API for syncing topic configurations"
    )


def test_a_refusal_of_one_topic_is_no_reason_to_fall_back(caplog: pytest.LogCaptureFixture) -> None:
    """K894-07: "Incompatible" = API missing/unsupported version only; authorization, invalid config, timeouts, unknown
    topic do not trigger fallback.

    K894-22: Per-topic failure logs WARN "Could not alter configuration of topic X" and does not stop other topics or
    later rounds.

    K894-25: Target ACL needed: ALTER_CONFIGS on target topics; source: DESCRIBE_CONFIGS on source topics; a denial is
    logged with the operation's name.
    """
    there = target()
    there.configs["A.u"]["retention.ms"] = "9"
    there.refuses["A.t"] = AdminRefusedError("TOPIC_AUTHORIZATION_FAILED", "no")
    sync = ConfigSync(flow(), source(), there)
    with caplog.at_level(logging.WARNING):
        sync.run(["t", "u"])
    assert there.configs["A.u"] == {}
    assert not sync.uses_legacy
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("Could not alter configuration of topic A.t")
    assert told[1].startswith("TopicAuthorizationException occurred while trying to alter the configs of topic A.t")


@pytest.mark.parametrize("mode", ["requested", "required"])
def test_what_the_target_lacks_is_found_out_though_nothing_is_to_be_changed(mode: str) -> None:
    """K894-05, K894-09: not in a month, when somebody changes a config."""
    there = FakeAdmin({"A.t": {"retention.ms": "5"}}, incremental=False)
    sync = ConfigSync(flow(mode), source(), there)
    with contextlib.suppress(FlowFailedError):
        sync.run(["t"])
    assert there.calls == (["check A.t", "alter"] if mode == "requested" else ["check A.t"])


def test_the_target_is_asked_once_whether_it_takes_single_configs() -> None:
    """K894-04: requested: topic configs are written with IncrementalAlterConfigs."""
    there = target()
    sync = ConfigSync(flow(), source(), there)
    sync.run(["t"])
    sync.run(["t"])
    assert there.calls == ["check A.t", "describe", "incremental", "describe", "incremental"]


def test_never_uses_alter_configs_only() -> None:
    """K894-08, K894-19, K894-21: the complete set, without looking at the target."""
    there = target()
    ConfigSync(flow("never"), source(), there).run(["t"])
    assert there.calls == ["alter"]
    assert there.configs["A.t"] == {"retention.ms": "5"}


def test_required_fails_the_flow_and_never_calls_alter_configs() -> None:
    """K894-09: required: only IncrementalAlterConfigs; if incompatible, report to the user and fail the connector."""
    there = target(incremental=False)
    expected = "use.incremental.alter.configs was set to required, but the target cluster B is not compatible"
    with pytest.raises(FlowFailedError, match=expected):
        ConfigSync(flow("required"), source(), there).run(["t"])
    assert "alter" not in there.calls


def test_a_remote_topic_that_is_not_known_yet_is_left_for_the_next_round(caplog: pytest.LogCaptureFixture) -> None:
    """K894-21: it was created with its configs a moment ago; that is no reason to send all of them."""
    there = target()
    there.missing.add("A.t")
    with caplog.at_level(logging.INFO):
        ConfigSync(flow(), source(), there).run(["t", "u"])
    assert there.configs["A.t"] == {"min.insync.replicas": "2", "cleanup.policy": "compact"}
    assert not caplog.records


def test_what_is_sent_unseen_is_not_told_as_a_change(caplog: pytest.LogCaptureFixture) -> None:
    """K894-21: it is sent again in each round, whether it changes something or not."""
    there = target()
    there.hides.add("A.t")
    with caplog.at_level(logging.INFO):
        ConfigSync(flow(), source(), there).run(["t"])
    assert there.configs["A.t"] == {"min.insync.replicas": "2", "retention.ms": "5"}
    assert not caplog.records


def test_where_the_target_hides_its_configs_everything_is_sent() -> None:
    """K894-21: No describe-then-replace emulation on the target (rejected alternative)."""
    there = target()
    there.hides.add("A.t")
    sync = ConfigSync(flow(), source(), there)
    described = {"t": source()._entries("t")}
    assert [operation.name for operation in sync.plan(described)["A.t"]] == ["retention.ms", "cleanup.policy"]


def test_nothing_is_sent_and_nothing_said_when_nothing_changes(caplog: pytest.LogCaptureFixture) -> None:
    """K894-21, K894-22: no warning on success."""
    there = target()
    sync = ConfigSync(flow(), source(), there)
    sync.run(["t"])
    with caplog.at_level(logging.INFO):
        sync.run(["t"])
    assert caplog.records == []


def test_a_source_topic_that_can_not_be_described_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """K894-25: Target ACL needed: ALTER_CONFIGS on target topics; source: DESCRIBE_CONFIGS on source topics; a denial
    is logged with the operation's name.
    """
    here, there = source(), target()
    here.hides.add("t")
    with caplog.at_level(logging.ERROR):
        ConfigSync(flow(), here, there).run(["t", "u"])
    assert there.configs["A.t"] == {"min.insync.replicas": "2", "cleanup.policy": "compact"}
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("TopicAuthorizationException occurred while trying to describe the configs of topic t")


def test_a_config_that_the_target_does_not_know_is_told_once_and_the_others_are_synced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """K894-22: told again when it changes; the rest of the topic is not held up."""
    source, target = VendorAdmin({"t": {"retention.ms": "5"}}), FakeAdmin({"A.t": {}})
    sync = ConfigSync(flow(), source, target)
    with caplog.at_level(logging.WARNING):
        sync.run(["t"])
        sync.run(["t"])
        source.value = "2"
        sync.run(["t"])
    assert target.configs["A.t"] == {"retention.ms": "5"}
    warned = [record.getMessage() for record in caplog.records]
    assert (
        warned
        == ["Could not alter configuration of topic A.t: cluster B does not know vendor.key, which is left out"] * 2
    )


def test_a_refusal_is_told_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """K894-22: Per-topic failure logs WARN "Could not alter configuration of topic X" and does not stop other topics or
    later rounds.
    """
    source, target = FakeAdmin({"t": {"retention.ms": "5"}}), FakeAdmin({"A.t": {}})
    sync = ConfigSync(flow(), source, target)
    target.refuses["A.t"] = AdminRefusedError("INVALID_CONFIG", "no")
    with caplog.at_level(logging.WARNING):
        sync.run(["t"])
        sync.run(["t"])
        target.refuses["A.t"] = AdminRefusedError("POLICY_VIOLATION", "never")
        sync.run(["t"])
        target.refuses.clear()
        sync.run(["t"])
    assert [record.getMessage() for record in caplog.records] == [
        "Could not alter configuration of topic A.t: INVALID_CONFIG: no",
        "Could not alter configuration of topic A.t: POLICY_VIOLATION: never",
    ]
    assert target.configs["A.t"] == {"retention.ms": "5"}
