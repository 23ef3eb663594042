"""A changed replication factor moves replicas under a throttle, which is removed afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm import cli
from klamm.admin import AdminClient, ConfigResource, NewTopic, ResourceType

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.support.kafka import KafkaCluster


def test_replication_factor_changes_by_a_throttled_reassignment(
    real_kafka_3: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    at = ("--bootstrap-server", real_kafka_3.bootstrap_servers)
    file = tmp_path / "topics.yaml"
    with AdminClient(real_kafka_3.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="replicated", replicas_assignments={0: (1,), 1: (2,)})]).all().result()
        file.write_text("topics: {replicated: {replication_factor: 4}}")
        # when
        assert cli.main(["plan", str(file), *at]) == 1
        # then
        assert "replication_factor: 4: expected at most 3, the number of brokers" in capsys.readouterr().err
        # when
        file.write_text("topics: {replicated: {replication_factor: 3}}")
        assert cli.main(["apply", str(file), *at, "--throttle", "1000000"]) == 0
        # then
        assert "~ replication_factor: 1 (cluster) -> 3 (file)" in capsys.readouterr().out
        topic = admin.describe_topics(["replicated"], is_current=True).result()["replicated"]
        assert [(len(p.replicas), p.replicas[0]) for p in topic.partitions] == [(3, 1), (3, 2)]
        brokers = [ConfigResource(ResourceType.BROKER, str(node)) for node in (1, 2, 3)]
        resources = [ConfigResource(ResourceType.TOPIC, "replicated"), *brokers]
        configs = admin.describe_configs(resources, is_current=True).result()
        assert [
            e.value for entries in configs.values() for e in entries.values() if ".throttled." in e.name and e.value
        ] == []
        assert cli.main(["plan", str(file), *at, "--check"]) == 0
        admin.delete_topics(["replicated"]).all().result()
