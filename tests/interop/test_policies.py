"""Policies of all kinds in a running broker: denials, slow policies and failing ones."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from typing import TYPE_CHECKING, Any

import pytest

import klamm
from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OpType,
    ResourceType,
)
from klamm.embedded.server_process import BrokerStartError
from klamm.protocol.errors import KafkaApiError, PolicyViolationError, UnknownTopicOrPartitionError
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from tests.support.processes import wait_until
from tests.support.wire import WireClient, alter_topic_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

POLICY = """
    import time
    from klamm.policy import Policy, PolicyViolationError

    class House(Policy):
        def validate_create_topic(self, details):
            if details.topic.startswith("endless"):
                while True:
                    pass
            if details.topic.startswith("no"):
                raise PolicyViolationError("VERSION: not created")

        def validate_alter_config(self, details):
            time.sleep(0.02 if "flush.ms" in details.configs else 0)
            if int(details.result.get("flush.ms", 0)) + int(details.result.get("flush.messages", 0)) > 100:
                raise PolicyViolationError(f"{details.resource_name}: flush.ms plus flush.messages is above 100")

        def validate_create_partitions(self, details):
            if details.new_num_partitions > 2 * details.num_partitions:
                raise PolicyViolationError(
                    f"{details.topic}: from {details.num_partitions} to {details.new_num_partitions} by"
                    f" {details.principal} from {details.client_id} at {details.listener}"
                )

        def validate_delete_topic(self, details):
            if details.topic.startswith("kept"):
                raise PolicyViolationError(f"{details.topic} ({details.topic_id}, {details.num_partitions}) stays")
"""
SLOW_POLICY = """
    import time
    from pathlib import Path
    from klamm.policy import Policy

    class Slow(Policy):
        def validate_create_topic(self, details):
            Path(__file__).with_name("begun").touch()
            while not Path(__file__).with_name("may-end").exists():
                time.sleep(0.01)
"""
KEYS = ("create.topic", "alter.config", "create.partitions", "delete.topic")


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("policies")
    path = directory / "klamm_house_of_all.py"
    path.write_text(textwrap.dedent(POLICY))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        yield path


@pytest.fixture(scope="module")
def broker(module: Path) -> Iterator[klamm.Broker]:
    config = {f"{key}.policy.class.name": "klamm_house_of_all:House" for key in KEYS}
    with klamm.Broker(config={**config, "policy.timeout.ms": 2000, "policy.reload.interval.ms": 0}) as broker:
        assert module.exists()
        yield broker


@pytest.fixture
def admin(broker: klamm.Broker) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap_servers, client_id="tool") as admin:
        yield admin


def alter(admin: AdminClient, topic: str, name: str, value: str | None) -> Future[Any]:
    kind = OpType.DELETE if value is None else OpType.SET
    changes = {ConfigResource(ResourceType.TOPIC, topic): [AlterConfigOp(ConfigEntry(name, value), kind)]}
    return admin.incremental_alter_configs(changes).all()


def test_policy_limits_added_partitions(admin: AdminClient) -> None:
    admin.create_topics([NewTopic(name="growing"), NewTopic(name="leaping")]).all().result()
    outcomes = admin.create_partitions(
        {"growing": NewPartitions(total_count=2), "leaping": NewPartitions(total_count=3)}
    ).values()
    outcomes["growing"].result()
    with pytest.raises(PolicyViolationError, match="leaping: from 1 to 3 by User:ANONYMOUS from tool at PLAINTEXT"):
        outcomes["leaping"].result()
    described = admin.describe_topics(["growing", "leaping"]).all().result()
    assert [len(described[name].partitions) for name in ("growing", "leaping")] == [2, 1]


def test_policy_limits_topic_deletion(admin: AdminClient) -> None:
    made = admin.create_topics([NewTopic(name="kept", num_partitions=2), NewTopic(name="gone")]).all().result()
    assert set(made) == {"kept", "gone"}
    outcomes = admin.delete_topics(["kept", "gone"]).values()
    outcomes["gone"].result()
    with pytest.raises(PolicyViolationError, match=r"kept \([0-9a-f-]{36}, 2\) stays"):
        outcomes["kept"].result()
    assert "kept" in admin.list_topics().result()
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.describe_topics(["gone"]).all().result()


def test_policy_checks_concurrent_changes_in_sequence(broker: klamm.Broker) -> None:
    """K339-41: two changes that are fine alone and not together; only one of each round may pass."""
    with AdminClient(broker.bootstrap_servers) as first, AdminClient(broker.bootstrap_servers) as other:
        first.create_topics([NewTopic(name="contended")]).all().result()
        for _ in range(15):
            outcomes = [alter(first, "contended", "flush.ms", "60"), alter(other, "contended", "flush.messages", "60")]
            denials = [error for error in (outcome.exception() for outcome in outcomes) if error is not None]
            assert len(denials) == 1
            assert isinstance(denials[0], PolicyViolationError)
            for name in ("flush.ms", "flush.messages"):
                alter(first, "contended", name, None).result()


def test_slow_policy_does_not_delay_other_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy returns only after another client was served, so a broker that waits for it would time out."""
    (tmp_path / "klamm_slow_house.py").write_text(textwrap.dedent(SLOW_POLICY))
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {"create.topic.policy.class.name": "klamm_slow_house:Slow", "policy.timeout.ms": 30_000}
    with (
        klamm.Broker(config=config) as broker,
        AdminClient(broker.bootstrap_servers) as admin,
        AdminClient(broker.bootstrap_servers, timeout_ms=60_000) as other,
    ):
        slow = admin.create_topics([NewTopic(name="slow-1")]).all()
        wait_until((tmp_path / "begun").exists, timeout_s=30, what="the policy to be asked")
        for _ in range(3):
            other.describe_cluster().result()
        assert not slow.done()
        (tmp_path / "may-end").touch()
        slow.result()


def test_hanging_policy_fails_one_topic_of_a_request(admin: AdminClient) -> None:
    """K108-06: Denial touches only that topic; the others are processed.

    K108-19: Any other exception from the policy fails only that topic (-1), is logged, and the broker lives on.
    """
    outcomes = admin.create_topics([NewTopic(name=name) for name in ("before", "endless", "after")]).values()
    outcomes["before"].result()
    outcomes["after"].result()
    with pytest.raises(KafkaApiError, match=r"did not decide within 2000 ms \(policy\.timeout\.ms\)"):
        outcomes["endless"].result()
    assert "endless" not in admin.list_topics().result()


def test_sighup_reloads_changed_policy(broker: klamm.Broker, admin: AdminClient, module: Path) -> None:
    def denial() -> str:
        with pytest.raises(PolicyViolationError) as denied:
            admin.create_topics([NewTopic(name="no")]).all().result()
        return str(denied.value)

    assert "VERSION: not created" in denial()
    module.write_text(module.read_text().replace("VERSION", "NEW"))
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGHUP)
    deadline = time.monotonic() + 30
    while "NEW: not created" not in denial():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    module.write_text("this is no Python")
    os.kill(broker.pid, signal.SIGHUP)
    deadline = time.monotonic() + 30
    while "the last good ones keep serving" not in broker.log_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "NEW: not created" in denial()


def test_audit_mode_allows_and_logs_denial(module: Path) -> None:
    assert module.exists()
    config = {
        "delete.topic.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "delete.topic.policy.mode": "audit",
        "policy.rules.file": str(module.parent / "rules.yaml"),
    }
    (module.parent / "rules.yaml").write_text("rules: [{name: books, deletion: forbidden}]")
    with klamm.Broker(config=config) as broker, AdminClient(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="books")]).all().result()
        admin.delete_topics(["books"]).all().result()
        assert "Delete topic policy, audit only: would deny 'books'" in broker.log_text()


def test_invalid_policy_mode_fails_broker_start() -> None:
    with pytest.raises(BrokerStartError, match=r"loud for configuration delete\.topic\.policy\.mode: .*ENFORCE, AUDIT"):
        klamm.Broker(config={"delete.topic.policy.mode": "loud"}).start()


def test_maximum_applies_to_the_broker_default(tmp_path: Path) -> None:
    week_ms, day_ms = "604800000", "86400000"
    (tmp_path / "rules.yaml").write_text(f"rules: [{{name: week, configs: {{retention.ms: {{max: {week_ms}}}}}}}]")
    config = {
        "create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "alter.config.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "policy.rules.file": str(tmp_path / "rules.yaml"),
        "log.retention.hours": "720",
    }
    with klamm.Broker(config=config) as broker, AdminClient(broker.bootstrap_servers) as admin:
        # given
        with pytest.raises(PolicyViolationError, match=r"retention.ms=2592000000 \(the broker's default\)"):
            admin.create_topics([NewTopic(name="left-out")]).all().result()
        admin.create_topics([NewTopic(name="set", configs={"retention.ms": day_ms})]).all().result()
        resource = ConfigResource(ResourceType.TOPIC, "set")
        # when, then: neither a DELETE nor a replacement that leaves it out
        with pytest.raises(PolicyViolationError, match="the broker's default"):
            alter(admin, "set", "retention.ms", None).result()
        with pytest.raises(PolicyViolationError, match="the broker's default"):
            admin.replace_all_configs({resource: [ConfigEntry("flush.ms", "5")]}).all().result()
        # when
        default = AlterConfigOp(ConfigEntry("log.retention.ms", day_ms), OpType.SET)
        admin.incremental_alter_configs({ConfigResource(ResourceType.BROKER, ""): [default]}).all().result()
        # then
        alter(admin, "set", "retention.ms", None).result()
        admin.create_topics([NewTopic(name="left-out")]).all().result()


def test_override_corrects_values_and_is_reported_in_the_response(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(
        "rules: [{name: week, effect: override, partitions: {max: 4}, configs: {retention.ms: {max: 1000}}}]"
    )
    keys = ("create.topic", "alter.config")
    config = {f"{key}.policy.class.name": "klamm.policy.rules:RulesPolicy" for key in keys}
    with (
        klamm.Broker(config={**config, "policy.rules.file": str(tmp_path / "rules.yaml")}) as broker,
        WireClient(broker.bootstrap_servers) as client,
    ):
        # when
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=9, replication_factor=1)
        created = client.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 7).topics[0]
        # then
        assert (created.error_code, created.num_partitions) == (0, 4)
        assert created.error_message == (
            "Rule 'week': partitions=9 of topic t is above the maximum 4; set to 4."
            " Rule 'week': retention.ms=604800000 (the broker's default) of topic t is above the maximum 1000 (1 s);"
            ' set to 1000. (stored instead: {"partitions": "4", "retention.ms": "1000"})'
        )
        assert client.topic_configs("t")["retention.ms"] == "1000"
        # when
        changes = alter_topic_request("t", [("retention.ms", 0, "5000"), ("flush.ms", 0, "7")])
        altered = client.ask(changes, IncrementalAlterConfigsResponse, 1).responses[0]
        # then
        assert (altered.error_code, altered.error_message) == (
            0,
            "Rule 'week': retention.ms=5000 of topic t is above the maximum 1000 (1 s); set to 1000."
            ' (stored instead: {"retention.ms": "1000"})',
        )
        assert [client.topic_configs("t")[name] for name in ("retention.ms", "flush.ms")] == ["1000", "7"]


def test_replacement_that_omits_configs_is_denied(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("rules: [{name: keep, omission: forbidden}]")
    config = {
        "alter.config.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "policy.rules.file": str(tmp_path / "rules.yaml"),
    }
    with klamm.Broker(config=config) as broker, AdminClient(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("t", configs={"flush.ms": "5", "segment.ms": "60000"})]).result()
        resource = ConfigResource(ResourceType.TOPIC, "t")
        with pytest.raises(PolicyViolationError, match=r"would remove segment\.ms of topic t by omission"):
            admin.replace_all_configs({resource: [ConfigEntry("flush.ms", "6")]}).result()
        both = [ConfigEntry("flush.ms", "6"), ConfigEntry("segment.ms", "60000")]
        admin.replace_all_configs({resource: both}).result()
