from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import pytest

from klamm.admin import AlterConfigsResult, ConfigEntry, ConfigSource, OpType, PolicyOverride
from klamm.mirror.progress.flow_progress import FlowFailedError
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.config_sync import ConfigSync
from tests.support.mirror_fakes import FakeCluster, completed_result, entries_of, rejection

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.admin import AlterConfigOp, AlterConfigsOptions, ConfigResource, DescribeConfigsResult, KafkaApiError
    from klamm.mirror.settings.flow import FlowSettings


class FakeAdmin(FakeCluster):
    """One cluster's topic configs in memory. It records the calls."""

    def __init__(self, configs: Mapping[str, Mapping[str, str]], *, incremental: bool = True) -> None:
        super().__init__()
        self.configs = {topic: dict(own) for topic, own in configs.items()}
        self.incompatible = not incremental
        self.hides: set[str] = set()
        self.missing: set[str] = set()
        self.calls: list[str] = []

    def describe_configs(
        self, resources: Collection[ConfigResource] | Mapping[ConfigResource, Collection[str] | None], **_: Any
    ) -> DescribeConfigsResult:
        self.calls.append("describe")
        return super().describe_configs(resources)

    def entries(self, topic: str) -> list[ConfigEntry] | KafkaApiError:
        if topic in self.hides:
            return rejection("TOPIC_AUTHORIZATION_FAILED")
        if topic in self.missing:
            return rejection("UNKNOWN_TOPIC_OR_PARTITION")
        return self.known(topic)

    def known(self, topic: str) -> list[ConfigEntry]:
        defaults = {"retention.ms": "604800000", "cleanup.policy": "delete", "min.insync.replicas": "1"}
        own = self.configs[topic]
        return [
            ConfigEntry(
                name,
                own.get(name, value),
                source=ConfigSource.DYNAMIC_TOPIC_CONFIG if name in own else ConfigSource.DEFAULT_CONFIG,
            )
            for name, value in defaults.items()
        ]

    def incremental_alter_configs(
        self,
        configs: Mapping[ConfigResource, Collection[AlterConfigOp]],
        options: AlterConfigsOptions | None = None,
    ) -> AlterConfigsResult:
        for topic, ops in configs.items():
            self.calls.append("incremental" if ops else f"check {topic.name}")
            for op in ops if topic.name not in self.rejects else ():
                if op.op_type is OpType.DELETE:
                    self.configs[topic.name].pop(op.config_entry.name, None)
                else:
                    self.configs[topic.name][op.config_entry.name] = str(op.config_entry.value)
        return super().incremental_alter_configs(configs, options)

    def replace_all_configs(
        self,
        configs: Mapping[ConfigResource, Collection[ConfigEntry]],
        options: AlterConfigsOptions | None = None,
    ) -> AlterConfigsResult:
        self.calls.append("alter")
        for topic, complete in configs.items():
            self.configs[topic.name] = {entry.name: str(entry.value) for entry in complete}
        return completed_result(AlterConfigsResult(configs), dict.fromkeys(configs))


class VendorAdmin(FakeAdmin):
    """A cluster whose topics have a config of its vendor's."""

    value = "1"

    def known(self, topic: str) -> list[ConfigEntry]:
        return [*super().known(topic), *entries_of({"vendor.key": self.value})]


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


def test_requested_uses_incremental_alter_configs() -> None:
    """K894-04: requested: topic configs are written with IncrementalAlterConfigs.

    K894-10: MirrorMaker must not clear target topic configs that are excluded from replication.

    K894-13: Incremental + shouldReplicateSourceDefault false: a prop that is default on the source topic is DELETEd on
    the target.
    """
    there = target()
    ConfigSync(flow(), source(), there).run(["t", "u"])
    assert there.configs == {"A.t": {"min.insync.replicas": "2", "retention.ms": "5"}, "A.u": {}}
    assert there.calls == ["check A.t", "describe", "incremental"]


def test_requested_falls_back_to_alter_configs_once(caplog: pytest.LogCaptureFixture) -> None:
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


def test_rejected_topic_does_not_cause_fallback(caplog: pytest.LogCaptureFixture) -> None:
    """K894-07: "Incompatible" = API missing/unsupported version only; authorization, invalid config, timeouts, unknown
    topic do not trigger fallback.

    K894-22: Per-topic failure logs WARN "Could not alter configuration of topic X" and does not stop other topics or
    later rounds.

    K894-25: Target ACL needed: ALTER_CONFIGS on target topics; source: DESCRIBE_CONFIGS on source topics; a denial is
    logged with the operation's name.
    """
    there = target()
    there.configs["A.u"]["retention.ms"] = "9"
    there.rejects["A.t"] = rejection("TOPIC_AUTHORIZATION_FAILED", "no")
    sync = ConfigSync(flow(), source(), there)
    with caplog.at_level(logging.WARNING):
        sync.run(["t", "u"])
    assert there.configs["A.u"] == {}
    assert not sync.uses_legacy
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith("Could not alter configuration of topic A.t")
    assert messages[1].startswith("TopicAuthorizationException occurred while trying to alter the configs of topic A.t")


@pytest.mark.parametrize("mode", ["requested", "required"])
def test_unsupported_incremental_alter_configs_is_detected_without_changes(mode: str) -> None:
    """K894-05, K894-09: not in a month, when somebody changes a config."""
    there = FakeAdmin({"A.t": {"retention.ms": "5"}}, incremental=False)
    sync = ConfigSync(flow(mode), source(), there)
    with contextlib.suppress(FlowFailedError):
        sync.run(["t"])
    assert there.calls == (["check A.t", "alter"] if mode == "requested" else ["check A.t"])


def test_incremental_alter_configs_support_is_checked_once() -> None:
    """K894-04: requested: topic configs are written with IncrementalAlterConfigs."""
    there = target()
    sync = ConfigSync(flow(), source(), there)
    sync.run(["t"])
    sync.run(["t"])
    assert there.calls == ["check A.t", "describe", "incremental", "describe"]


def test_never_uses_only_alter_configs() -> None:
    """K894-08, K894-19, K894-21: the complete set, without looking at the target."""
    there = target()
    ConfigSync(flow("never"), source(), there).run(["t"])
    assert there.calls == ["alter"]
    assert there.configs["A.t"] == {"retention.ms": "5"}


def test_required_fails_flow_without_alter_configs() -> None:
    """K894-09: required: only IncrementalAlterConfigs; if incompatible, report to the user and fail the connector."""
    there = target(incremental=False)
    expected = "use.incremental.alter.configs was set to required, but the target cluster B is not compatible"
    with pytest.raises(FlowFailedError, match=expected):
        ConfigSync(flow("required"), source(), there).run(["t"])
    assert "alter" not in there.calls


class RolledBackAdmin(FakeAdmin):
    """A target whose brokers lack IncrementalAlterConfigs from the first change on."""

    def incremental_alter_configs(
        self,
        configs: Mapping[ConfigResource, Collection[AlterConfigOp]],
        options: AlterConfigsOptions | None = None,
    ) -> AlterConfigsResult:
        self.incompatible = self.incompatible or any(configs.values())
        return super().incremental_alter_configs(configs, options)


def test_requested_falls_back_if_the_target_lacks_the_api_later(caplog: pytest.LogCaptureFixture) -> None:
    """K894-05: as in a rolling upgrade, where the first call was answered by a newer broker."""
    there = RolledBackAdmin({"A.t": {"min.insync.replicas": "2"}})
    sync = ConfigSync(flow(), source(), there)
    sync.run(["t"])
    sync.run(["t"])
    assert there.calls[-2:] == ["alter", "alter"]
    assert there.configs == {"A.t": {"retention.ms": "5"}}
    assert caplog.text.count("not compatible with IncrementalAlterConfigs API") == 1
    with pytest.raises(FlowFailedError, match="was set to required"):
        ConfigSync(flow("required"), source(), RolledBackAdmin({"A.t": {}})).run(["t"])


def test_new_remote_topic_is_synced_in_next_round(caplog: pytest.LogCaptureFixture) -> None:
    """K894-21: it was created with its configs a moment ago; that is no reason to send all of them."""
    there = target()
    there.missing.add("A.t")
    with caplog.at_level(logging.INFO):
        ConfigSync(flow(), source(), there).run(["t", "u"])
    assert there.configs["A.t"] == {"min.insync.replicas": "2", "cleanup.policy": "compact"}
    assert not caplog.records


def test_configs_sent_without_describe_are_not_logged_as_changes(caplog: pytest.LogCaptureFixture) -> None:
    """K894-21: it is sent again in each round, whether it changes something or not."""
    there = target()
    there.hides.add("A.t")
    with caplog.at_level(logging.INFO):
        ConfigSync(flow(), source(), there).run(["t"])
    assert there.configs["A.t"] == {"min.insync.replicas": "2", "retention.ms": "5"}
    assert not caplog.records


def test_all_configs_are_sent_without_describe_configs_right() -> None:
    """K894-21: No describe-then-replace emulation on the target (rejected alternative)."""
    there = target()
    there.hides.add("A.t")
    sync = ConfigSync(flow(), source(), there)
    described = {"t": {entry.name: entry for entry in source().known("t")}}
    assert [operation.name for operation in sync.plan(described)["A.t"]] == ["retention.ms", "cleanup.policy"]


def test_unchanged_configs_send_and_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """K894-21, K894-22: no warning on success."""
    there = target()
    sync = ConfigSync(flow(), source(), there)
    sync.run(["t"])
    with caplog.at_level(logging.INFO):
        sync.run(["t"])
    assert caplog.records == []


def test_undescribable_source_topic_is_skipped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """K894-25: Target ACL needed: ALTER_CONFIGS on target topics; source: DESCRIBE_CONFIGS on source topics; a denial
    is logged with the operation's name.
    """
    here, there = source(), target()
    here.hides.add("t")
    with caplog.at_level(logging.ERROR):
        sync = ConfigSync(flow(), here, there)
        sync.run(["t", "u"])
        sync.run(["t", "u"])
    assert there.configs["A.t"] == {"min.insync.replicas": "2", "cleanup.policy": "compact"}
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("TopicAuthorizationException occurred while trying to describe the configs of topic t")
    # logged again after a success
    here.hides.clear()
    sync.run(["t", "u"])
    here.hides.add("t")
    sync.run(["t", "u"])
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [message] * 2


def test_config_unknown_to_target_is_skipped_and_logged_once(
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
        == ["Could not alter configuration of topic A.t: cluster B does not know vendor.key, which is skipped"] * 2
    )


class OverridingAdmin(FakeAdmin):
    """A target whose policy stores retention.ms=1."""

    def incremental_alter_configs(
        self,
        configs: Mapping[ConfigResource, Collection[AlterConfigOp]],
        options: AlterConfigsOptions | None = None,
    ) -> AlterConfigsResult:
        super().incremental_alter_configs(configs, options)
        self.configs["A.t"]["retention.ms"] = "1"
        override = PolicyOverride(reason="at most 1", values={"retention.ms": "1"})
        return completed_result(AlterConfigsResult(configs), dict.fromkeys(configs, override))


def test_value_that_a_policy_overrides_is_logged_once_and_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    source, target = FakeAdmin({"t": {"retention.ms": "5", "cleanup.policy": "compact"}}), OverridingAdmin({"A.t": {}})
    sync = ConfigSync(flow(), source, target)
    with caplog.at_level(logging.INFO):
        sync.run(["t"])
        sync.run(["t"])
        source.configs["t"]["retention.ms"] = "7"
        sync.run(["t"])
    assert target.calls.count("incremental") == 3, "the policy may have changed"
    assert sorted(record.getMessage() for record in caplog.records) == [
        "A->B: topic A.t: cleanup.policy = compact: set on the source topic",
        "A->B: topic A.t: retention.ms: a policy of cluster B stores 1 in place of 5: at most 1",
        "A->B: topic A.t: retention.ms: a policy of cluster B stores 1 in place of 7: at most 1",
    ]


def test_rejection_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """K894-22: Per-topic failure logs WARN "Could not alter configuration of topic X" and does not stop other topics or
    later rounds.
    """
    source, target = FakeAdmin({"t": {"retention.ms": "5"}}), FakeAdmin({"A.t": {}})
    sync = ConfigSync(flow(), source, target)
    target.rejects["A.t"] = rejection("INVALID_CONFIG", "no")
    with caplog.at_level(logging.WARNING):
        sync.run(["t"])
        sync.run(["t"])
        target.rejects["A.t"] = rejection("POLICY_VIOLATION", "never")
        sync.run(["t"])
        target.rejects.clear()
        sync.run(["t"])
    assert [record.getMessage() for record in caplog.records] == [
        "Could not alter configuration of topic A.t: INVALID_CONFIG: no",
        "Could not alter configuration of topic A.t: POLICY_VIOLATION: never",
    ]
    assert target.configs["A.t"] == {"retention.ms": "5"}
