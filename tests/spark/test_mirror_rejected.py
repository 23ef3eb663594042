"""Rejections that require manual action: a job ends with them, and a plan reports them beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.cli.mirror import main as klamm_mirror
from tests.support.klamm import KlammBroker
from tests.support.mirror import MirrorProcess, Seen, create_topic, produce
from tests.support.processes import free_port
from tests.support.record_times import RECENT_MS
from tests.support.security import PASSWORDS, PLAIN_MODULE, sasl_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORDS = [(0, Seen(None, b"v", (), RECENT_MS))]


@pytest.fixture(scope="module")
def source() -> Iterator[KlammBroker]:
    with KlammBroker() as broker:
        create_topic(broker.bootstrap_servers, "orders")
        produce(broker.bootstrap_servers, "orders", RECORDS)
        yield broker


class Guarded:
    """A broker that lets a principal do only what ACLs allow, with another listener for the test."""

    def __init__(self) -> None:
        self.inside, self.outside = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.broker = klamm.Broker(
            config={
                **sasl_settings(listener="outside"),
                "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
                "listeners": f"INSIDE://{self.inside},OUTSIDE://{self.outside}",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "auto.create.topics.enable": "false",
            }
        )


LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f'{PLAIN_MODULE} required username="alice" password="{PASSWORDS["alice"]}";',
}


@pytest.fixture
def guarded() -> Iterator[tuple[Guarded, Guarded]]:
    """Two clusters on which alice may do nothing. The second one has the topics that the mirror would create."""
    without_topics, with_topics = Guarded(), Guarded()
    with without_topics.broker, with_topics.broker:
        for name in ("A.orders", "mm2-offsets.A.internal"):
            create_topic(with_topics.inside, name)
        yield without_topics, with_topics


@pytest.mark.long
def test_flows_requiring_manual_action_end_job_and_fail_plan(
    source: KlammBroker, guarded: tuple[Guarded, Guarded], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replication factor that the target cannot have, no right to create topics, and no right to write to them."""
    # given
    without_topics, with_topics = guarded
    with KlammBroker() as small:
        targets = {
            "small": small.bootstrap_servers,
            "nocreate": without_topics.outside,
            "nowrite": with_topics.outside,
        }
        file = f"clusters = A, {', '.join(targets)}\nA.bootstrap.servers = {source.bootstrap_servers}\n"
        file += "topics = orders\nreplication.factor = 1\nA->small.replication.factor = 3\n"
        file += "emit.heartbeats.enabled = false\nemit.checkpoints.enabled = false\n"
        file += "emit.offset-syncs.enabled = false\nsync.topic.acls.enabled = false\n"
        for alias, address in targets.items():
            login, factor = ({}, 3) if alias == "small" else (LOGIN, 1)
            file += f"{alias}.bootstrap.servers = {address}\n{alias}.offset.storage.replication.factor = {factor}\n"
            file += f"A->{alias}.enabled = true\n"
            file += "".join(f"{alias}.{key} = {value}\n" for key, value in login.items())
        # when
        with MirrorProcess(file, tmp_path, "--until-caught-up", as_users_run_it=True) as mirror:
            code, log = mirror.wait(60), mirror.text()
        planned = klamm_mirror([str(tmp_path / "mm2.properties"), "--plan"])
        plan = [line for line in capsys.readouterr().out.splitlines() if "would be rejected" in line]
    # then
    assert code == 1, log
    assert not [line for line in log.splitlines() if "Spark" in line and " INFO " not in line]
    ends = {flow: line for line in log.splitlines() for flow in targets if f"A->{flow}: gives up" in line}
    assert "INVALID_REPLICATION_FACTOR" in ends["small"]
    assert "offset.storage.replication.factor=3" in ends["small"]
    assert "TOPIC_AUTHORIZATION_FAILED" in ends["nocreate"]
    assert "TOPIC_AUTHORIZATION_FAILED" in ends["nowrite"]
    assert planned == 1
    assert any("mm2-offsets.A.internal" in line for line in plan)
    assert any("topic A.orders: its creation on cluster small with replication.factor=3" in line for line in plan)
    assert all(any(f"cluster {alias}" in line for line in plan) for alias in targets), plan
