"""What ``pip install klamm`` without extras brings: a broker, clients, the command line and policies in 25 MB."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.base_install import BaseInstall

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024

PROGRAM = """
import json, sys
import klamm
from kafka import KafkaConsumer, KafkaProducer
from klamm.admin import AdminClient, NewTopic

with klamm.Broker(config={"create.topic.policy.class.name": "rules:SmallTopics"}) as broker:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, compression_type="gzip")
    producer.send("orders", b"1").get(timeout=10)
    consumer = KafkaConsumer("orders", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    value = next(consumer).value.decode()
    with AdminClient(broker.bootstrap_servers) as admin:
        refused = admin.create_topics([NewTopic(name="large", num_partitions=13)]).values()["large"].exception()
    import subprocess
    listed = subprocess.run(
        [sys.executable, "-m", "klamm.cli", "topics", "--bootstrap-server", broker.bootstrap_servers, "--list"],
        capture_output=True, text=True, check=True,
    ).stdout.split()
print(json.dumps({"value": value, "refused": str(refused), "listed": listed}))
"""
POLICY = """
from klamm.policy import PolicyViolationError

class SmallTopics:
    def validate(self, request):
        if (request.num_partitions or 0) > 12:
            raise PolicyViolationError("at most 12 partitions")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> BaseInstall:
    return BaseInstall(tmp_path_factory.mktemp("base-install"))


def test_it_takes_at_most_25_mb_with_its_dependencies(installed: BaseInstall) -> None:
    assert installed.distributions == {"cramjam", "crc32c", "google-re2", "kafka-python", "PyYAML"}
    assert MIB < installed.size_bytes() <= 25 * MIB


def test_broker_producer_consumer_policy_and_command_line_work(installed: BaseInstall, tmp_path: Path) -> None:
    # given
    (tmp_path / "rules.py").write_text(POLICY)
    program = tmp_path / "program.py"  # its directory is where Python finds the policy
    program.write_text(PROGRAM)
    # when
    done = installed.run(str(program))
    # then
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["value"] == "1"
    assert "at most 12 partitions" in said["refused"]
    assert said["listed"] == ["orders"]


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["mirror", "mm2.properties"], "spark"),
        (["registrations", "report", "--bootstrap-server", "127.0.0.1:1"], "spark"),
        (["demo"], "spark"),
    ],
)
def test_a_command_that_needs_an_extra_names_it_first(installed: BaseInstall, words: list[str], extra: str) -> None:
    done = installed.run("-m", "klamm.cli", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"pip install 'klamm[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("statement", "extra"),
    [
        ("import klamm.dataframes.spark", "spark"),
        ("from klamm.mirror.spark import start", "spark"),
        ("import klamm.clients.confluent", "confluent"),
        ("import klamm.clients.aio", "aiokafka"),
    ],
)
def test_an_import_that_needs_an_extra_names_it(installed: BaseInstall, statement: str, extra: str) -> None:
    done = installed.run("-c", statement)
    assert f"MissingExtraError: {statement.split()[1]}" in done.stderr
    assert f"pip install 'klamm[{extra}]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("action", ["status", "verify", "cutover"])
def test_looking_at_a_mirror_needs_no_spark(installed: BaseInstall, action: str, tmp_path: Path) -> None:
    # given
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters=A,B\nA.bootstrap.servers=127.0.0.1:1\nB.bootstrap.servers=127.0.0.1:1\nA->B.enabled=true\n"
    )
    words = ["cutover", "billing", str(file)] if action == "cutover" else [action, str(file)]
    # when
    done = installed.run("-m", "klamm.cli", "mirror", *words)
    # then
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "klamm[" not in done.stderr
    assert "Traceback" not in done.stderr
