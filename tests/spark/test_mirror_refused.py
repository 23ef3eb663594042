"""Refusals that only a person can end: a job says so and ends, a plan shows them before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.cli.mirror import main as klamm_mirror
from tests.support.klamm import KlammBroker
from tests.support.mirror import MirrorProcess, Seen, create_topic, produce, properties
from tests.support.processes import free_port
from tests.support.security import PASSWORDS, PLAIN_MODULE, sasl_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORDS = [(0, Seen(None, b"v", (), 1_700_000_000_000))]


@pytest.fixture(scope="module")
def source() -> Iterator[KlammBroker]:
    with KlammBroker() as broker:
        create_topic(broker.bootstrap_servers, "orders")
        produce(broker.bootstrap_servers, "orders", RECORDS)
        yield broker


def run_job(file: str, directory: Path) -> tuple[int, str, float]:
    """Run a mirror until it has caught up or gives up; return the exit code, the log and how long it took."""
    began = time.monotonic()
    with MirrorProcess(file, directory, "--until-caught-up", as_users_run_it=True) as mirror:
        code = mirror.wait(60)
        return code, mirror.text(), time.monotonic() - began


def plan(directory: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Plan with the file of the job before."""
    code = klamm_mirror([str(directory / "mm2.properties"), "--plan"])
    return code, [line for line in capsys.readouterr().out.splitlines() if "would be refused" in line]


def test_a_replication_factor_that_the_target_cannot_have_ends_a_job_and_fails_its_plan(
    source: KlammBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    with KlammBroker() as target:
        file = properties(source.bootstrap_servers, target.bootstrap_servers, topics="orders", replication_factor=3)
        # when
        code, log, took_s = run_job(file, tmp_path)
        planned, refused = plan(tmp_path, capsys)
    # then
    assert code == 1
    assert took_s < 30
    [line] = [line for line in log.splitlines() if "gives up" in line]
    assert "INVALID_REPLICATION_FACTOR" in line
    assert "offset.storage.replication.factor=3" in line
    assert "Spark" not in log
    assert planned == 1
    assert any("mm2-offsets.A.internal" in line for line in refused)
    assert any("topic A.orders: its creation on cluster B with replication.factor=3" in line for line in refused)


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


@pytest.mark.parametrize("exists", [False, True], ids=["no right to create", "no right to write"])
def test_a_missing_right_ends_a_job(
    source: KlammBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, exists: bool
) -> None:
    # given
    guarded = Guarded()
    more = "emit.heartbeats.enabled = false\nemit.checkpoints.enabled = false\nsync.topic.acls.enabled = false\n"
    more += "".join(f"B.{key} = {value}\n" for key, value in LOGIN.items())
    with guarded.broker:
        if exists:
            for name in ("A.orders", "mm2-offsets.A.internal"):
                create_topic(guarded.inside, name)
        file = properties(source.bootstrap_servers, guarded.outside, more, topics="orders")
        # when
        code, log, took_s = run_job(file, tmp_path)
        planned, refused = plan(tmp_path, capsys)
    # then
    assert code == 1, log
    assert took_s < 40
    assert "AUTHORIZATION_FAILED" in next(line for line in log.splitlines() if "gives up" in line)
    assert (planned, bool(refused)) == (1, True)
