"""``klamm configs history`` and ``revert`` with a running broker."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from klamm import Broker
from klamm.cli import main
from klamm.storage.metadata.history import read_config_history

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker") / "data"


@pytest.fixture(scope="module")
def broker(data_dir: Path) -> Iterator[Broker]:
    with Broker(data_dir=data_dir) as running:
        yield running


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """Name of a topic that no other test has."""
    return tmp_path.name


def configs(broker: Broker, *arguments: str) -> int:
    return main(["configs", "--bootstrap-server", broker.bootstrap_servers, *arguments])


def alter(broker: Broker, topic: str, *arguments: str) -> None:
    assert configs(broker, "--alter", "--topic", topic, *arguments) == 0


def make_changes(broker: Broker, topic: str) -> str:
    """Set two configs, return the time, then change one, remove the other and add a third."""
    server = ["--bootstrap-server", broker.bootstrap_servers]
    assert main(["topics", *server, "--create", "--topic", topic, "--partitions", "1"]) == 0
    alter(broker, topic, "--add-config", "retention.ms=1000,flush.ms=7")
    time.sleep(0.01)
    moment = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    alter(broker, topic, "--add-config", "retention.ms=2000,segment.ms=5000", "--delete-config", "flush.ms")
    return moment


def test_history_lists_config_changes_with_principal(
    broker: Broker, topic: str, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_changes(broker, topic)
    capsys.readouterr()
    assert main(["configs", "history", "--data-dir", str(data_dir), "--resource", f"TOPIC:{topic}", "-o", "json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert {(line["name"], line["old"], line["new"]) for line in lines} == {
        ("retention.ms", None, "1000"),
        ("flush.ms", None, "7"),
        ("retention.ms", "1000", "2000"),
        ("segment.ms", None, "5000"),
        ("flush.ms", "7", None),
    }
    assert {line["principal"] for line in lines} == {"User:ANONYMOUS"}


def test_revert_restores_earlier_configs_and_no_others(
    broker: Broker, topic: str, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = make_changes(broker, topic)
    server = ["--bootstrap-server", broker.bootstrap_servers]
    where = ["--data-dir", str(data_dir), "--resource", f"TOPIC:{topic}", "--to", moment]
    capsys.readouterr()
    assert main(["configs", "revert", *server, *where, "--validate-only"]) == 0
    assert main(["configs", "revert", *server, *where]) == 0
    output = capsys.readouterr().out
    assert "  ~ retention.ms: 2000 (2 s) -> 1000 (1 s)" in output
    assert "  + flush.ms: unset -> 7" in output
    assert "  - segment.ms: 5000 (5 s) -> unset" in output
    assert main(["configs", "revert", *server, *where]) == 0
    assert f"TOPIC:{topic} has the same configs as at " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--resource", "TOPICS:orders", "--to", "2026-01-01"], "--resource TOPICS:orders"),
        (["--resource", "TOPIC:orders", "--to", "yesterday"], "--to yesterday"),
    ],
)
def test_invalid_flag_is_named_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    flags = ["--bootstrap-server", "127.0.0.1:1", "--data-dir", str(tmp_path)]
    assert main(["configs", "revert", *flags, *arguments]) == 1
    assert named in capsys.readouterr().err


def test_history_rejects_directory_without_broker_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configs", "history", "--data-dir", str(tmp_path)]) == 1
    assert "is not the data directory of a klamm broker" in capsys.readouterr().err


def test_local_broker_returns_the_path_of_its_history(
    broker: Broker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = make_changes(broker, topic)
    capsys.readouterr()
    # when: the type in any case
    server = ["--bootstrap-server", broker.bootstrap_servers]
    assert main(["configs", "history", *server, "--resource", f"topic:{topic}", "--limit", "1"]) == 0
    assert main(["configs", "revert", *server, "--resource", f"topic:{topic}", "--to", moment]) == 0
    # then
    lines = capsys.readouterr().out.splitlines()
    assert f"TOPIC:{topic}" in lines[0]
    assert lines[-1] == f"TOPIC:{topic}: 3 configs reverted."


def test_history_accepts_resource_flags_of_klamm_configs(
    broker: Broker, topic: str, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = make_changes(broker, topic)
    assert configs(broker, "--alter", "--broker-defaults", "--add-config", "log.roll.ms=9") == 0
    capsys.readouterr()

    def history(*flags: str) -> str:
        assert main(["configs", "history", "--data-dir", str(data_dir), *flags]) == 0
        return capsys.readouterr().out

    for flags in (["--topic", topic], ["--entity-type", "topics", "--entity-name", topic]):
        assert history(*flags) == history("--resource", f"TOPIC:{topic}")
    for default in (["--broker-defaults"], ["--entity-type", "brokers", "--entity-default"]):
        assert "log.roll.ms: unset -> 9" in history(*default)
    assert history("--broker", "1") == "No change of BROKER:1 is recorded.\n"
    server = ["--bootstrap-server", broker.bootstrap_servers]
    assert main(["configs", "revert", *server, "--topic", topic, "--to", moment]) == 0
    assert capsys.readouterr().out.endswith(f"TOPIC:{topic}: 3 configs reverted.\n")


def test_revert_restores_configs_of_deleted_topic_to_its_successor(
    broker: Broker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # given: a topic with two configs, deleted and created again with another one
    server = ["--bootstrap-server", broker.bootstrap_servers]
    make_changes(broker, topic)
    moment = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    assert main(["topics", *server, "--delete", "--topic", topic]) == 0
    assert main(["topics", *server, "--create", "--topic", topic, "--config", "max.message.bytes=99999"]) == 0
    capsys.readouterr()
    # when
    assert main(["configs", "history", *server, "--topic", topic, "--limit", "3"]) == 0
    assert main(["configs", "revert", *server, "--topic", topic, "--to", moment]) == 0
    # then
    output = capsys.readouterr().out
    assert "retention.ms: 2000 (2 s) -> unset" in output
    assert "segment.ms: 5000 (5 s) -> unset" in output
    assert output.splitlines()[-4:] == [
        "  - max.message.bytes: 99999 -> unset",
        "  + retention.ms: unset -> 2000 (2 s)",
        "  + segment.ms: unset -> 5000 (5 s)",
        f"TOPIC:{topic}: 3 configs reverted.",
    ]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "a resource must be specified"),
        (["--topic", "a", "--group", "g"], "one resource at a time: TOPIC:a or GROUP:g"),
        (["--entity-type", "users", "--entity-name", "u"], "--entity-type users: expected one of topics, brokers, "),
        (["--entity-type", "topics"], "--entity-type needs one of --entity-name and --entity-default"),
        (["--entity-type", "topics", "--entity-default"], "--entity-default: there is no default of topics"),
        (["--entity-name", "a"], "--entity-name and --entity-default need --entity-type"),
    ],
)
def test_revert_rejects_missing_or_multiple_resources(
    flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["configs", "revert", "--data-dir", ".", "--to", "2026-01-01", *flags])
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_resource_without_type_is_rejected(
    broker: Broker, topic: str, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_changes(broker, topic)
    assert main(["configs", "history", "--data-dir", str(data_dir), "--resource", "orders"]) == 1
    assert "--resource orders: expected TYPE:NAME" in (error := capsys.readouterr().err)
    assert "a topic is TOPIC:orders" in error
    # users and clients are spelled as the history spells them
    assert configs(broker, "--alter", "--user", "una", "--add-config", "acks=1") == 0
    assert main(["configs", "history", "--data-dir", str(data_dir), "--resource", "user 'una'"]) == 0
    assert "acks: unset -> 1" in capsys.readouterr().out


def test_quotas_are_recorded_in_the_history_and_reverted(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    # given: quotas of a user whose name has everything that could be mistaken, and of default clients
    server = ["--bootstrap-server", broker.bootstrap_servers]
    whom = ["--user", "a,b=%<c>", "--client-defaults"]
    resource = "QUOTA:user=a%2Cb=%25%3Cc>,client-id=<default>"
    assert configs(broker, "--alter", *whom, "--add-config", "producer_byte_rate=1024,request_percentage=12.5") == 0
    time.sleep(0.01)
    moment = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    changed = ["--add-config", "producer_byte_rate=2048,consumer_byte_rate=7", "--delete-config", "request_percentage"]
    assert configs(broker, "--alter", *whom, *changed) == 0
    capsys.readouterr()
    # when
    assert main(["configs", "history", *server, "--resource", resource, "-o", "json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert main(["configs", "revert", *server, "--resource", resource, "--to", moment]) == 0
    output = capsys.readouterr().out
    assert main(["configs", "--describe", *server, *whom]) == 0
    # then
    assert {(line["name"], line["old"], line["new"]) for line in lines} == {
        ("producer_byte_rate", None, "1024"),
        ("request_percentage", None, "12.5"),
        ("producer_byte_rate", "1024", "2048"),
        ("consumer_byte_rate", None, "7"),
        ("request_percentage", "12.5", None),
    }
    assert {(line["resource"], line["principal"]) for line in lines} == {(resource, "User:ANONYMOUS")}
    assert all(line["client_id"] for line in lines)
    assert "  + request_percentage: unset -> 12.5" in output
    described = capsys.readouterr().out
    assert "producer_byte_rate=1024.0" in described
    assert "request_percentage=12.5" in described
    assert "consumer_byte_rate" not in described


def test_user_whose_name_looks_like_a_principal_has_its_own_quotas(
    broker: Broker, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ["--bootstrap-server", broker.bootstrap_servers]
    for whom, rate in (("lars", 7), ("User:User:lars", 50)):
        assert configs(broker, "--alter", "--user", whom, "--add-config", f"producer_byte_rate={rate}") == 0
    time.sleep(0.01)
    moment = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    for whom in ("lars", "User:User:lars"):
        assert configs(broker, "--alter", "--user", whom, "--add-config", "producer_byte_rate=70") == 0
    capsys.readouterr()
    # when
    assert main(["configs", "history", *server, "--limit", "1", "-o", "json"]) == 0
    output = capsys.readouterr()
    shown = json.loads(output.out)[0]["resource"]
    # then: the name is recorded without an escape, as always
    assert shown == "QUOTA:user=User%3Alars"
    assert len(read_config_history(data_dir, resource="QUOTA:user=User:lars", limit=9)) == 2
    assert "a later change is not in this history" not in output.err
    for resource in (shown, "QUOTA:user=User:User:lars"):
        assert main(["configs", "revert", *server, "--resource", resource, "--to", moment, "--validate-only"]) == 0
        assert f"producer_byte_rate: 70 -> 50\n{shown}: 1 config would be reverted." in capsys.readouterr().out
    assert main(["configs", "history", *server, "--resource", "QUOTA:user=User:lars"]) == 0
    assert "QUOTA:user=lars  producer_byte_rate: 7 -> 70" in capsys.readouterr().out


def test_history_hides_scram_credentials(broker: Broker, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--data-dir", str(data_dir), "--resource", "scram:anna"]
    for add in ("SCRAM-SHA-256=[iterations=5000,password=hunter2]", "SCRAM-SHA-512=[password=hunter2]"):
        assert configs(broker, "--alter", "--user", "anna", "--add-config", add) == 0
    assert configs(broker, "--alter", "--user", "anna", "--delete-config", "SCRAM-SHA-256") == 0
    capsys.readouterr()
    assert main(["configs", "history", *where, "-o", "json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert [(line["name"], line["old"], line["new"]) for line in lines] == [
        ("SCRAM-SHA-256", "[hidden] iterations=5000", None),
        ("SCRAM-SHA-512", None, "[hidden] iterations=4096"),
        ("SCRAM-SHA-256", None, "[hidden] iterations=5000"),
    ]
    assert {(line["resource"], line["principal"]) for line in lines} == {("SCRAM:anna", "User:ANONYMOUS")}
    # and there is no way back
    server = ["--bootstrap-server", broker.bootstrap_servers]
    assert main(["configs", "revert", *server, *where, "--to", "2026-01-01"]) == 1
    assert "SCRAM:anna: SCRAM credentials cannot be reverted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("resource", "reason"),
    [
        ("QUOTA:", "Unhandled client quota entity type"),
        ("QUOTA:topic=a", "Unhandled client quota entity type: topic"),
        ("QUOTA:user=a,user=b", "duplicate entity entry user"),
        ("user 'anna'", "client configs are reverted by klamm clients revert"),
    ],
)
def test_revert_of_unrevertible_resource_fails_with_reason(
    data_dir: Path, capsys: pytest.CaptureFixture[str], resource: str, reason: str
) -> None:
    server = ["--bootstrap-server", "127.0.0.1:1", "--data-dir", str(data_dir)]
    assert main(["configs", "revert", *server, "--resource", resource, "--to", "2026-01-01"]) == 1
    assert reason in capsys.readouterr().err
