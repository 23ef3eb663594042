"""``klamm configs history`` and ``revert`` beside a broker that runs."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from klamm import Broker
from klamm.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data_dir: Path) -> Iterator[Broker]:
    with Broker(data_dir=data_dir) as running:
        yield running


def configs(broker: Broker, *arguments: str) -> int:
    return main(["configs", "--bootstrap-server", broker.bootstrap_servers, *arguments])


def alter(broker: Broker, *arguments: str) -> None:
    assert configs(broker, "--alter", "--topic", "orders", *arguments) == 0


def make_changes(broker: Broker) -> str:
    """Set two configs, return the time, then change one, remove the other and add a third."""
    server = ["--bootstrap-server", broker.bootstrap_servers]
    assert main(["topics", *server, "--create", "--topic", "orders", "--partitions", "1"]) == 0
    alter(broker, "--add-config", "retention.ms=1000,flush.ms=7")
    time.sleep(0.01)
    moment = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    alter(broker, "--add-config", "retention.ms=2000,segment.ms=5000", "--delete-config", "flush.ms")
    return moment


def test_the_history_names_what_was_changed_by_whom(
    broker: Broker, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_changes(broker)
    capsys.readouterr()
    assert main(["configs", "history", "--data-dir", str(data_dir), "--resource", "TOPIC:orders", "-o", "json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert {(line["name"], line["old"], line["new"]) for line in lines} == {
        ("retention.ms", None, "1000"),
        ("flush.ms", None, "7"),
        ("retention.ms", "1000", "2000"),
        ("segment.ms", None, "5000"),
        ("flush.ms", "7", None),
    }
    assert {line["principal"] for line in lines} == {"User:ANONYMOUS"}


def test_reverting_brings_back_what_was_and_touches_nothing_else(
    broker: Broker, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = make_changes(broker)
    server = ["--bootstrap-server", broker.bootstrap_servers]
    where = ["--data-dir", str(data_dir), "--resource", "TOPIC:orders", "--to", moment]
    capsys.readouterr()
    assert main(["configs", "revert", *server, *where, "--validate-only"]) == 0
    assert main(["configs", "revert", *server, *where]) == 0
    told = capsys.readouterr().out
    assert "  ~ retention.ms: 2000 -> 1000" in told
    assert "  + flush.ms: unset -> 7" in told
    assert "  - segment.ms: 5000 -> unset" in told
    assert main(["configs", "revert", *server, *where]) == 0
    assert "0 config(s) reverted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--resource", "TOPICS:orders", "--to", "2026-01-01"], "--resource TOPICS:orders"),
        (["--resource", "TOPIC:orders", "--to", "yesterday"], "--to yesterday"),
    ],
)
def test_a_wrong_flag_is_named(
    data_dir: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    with Broker(data_dir=data_dir):
        flags = ["--bootstrap-server", "127.0.0.1:1", "--data-dir", str(data_dir)]
        assert main(["configs", "revert", *flags, *arguments]) == 1
    assert named in capsys.readouterr().err


def test_a_directory_that_is_no_brokers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configs", "history", "--data-dir", str(tmp_path)]) == 1
    assert "is no data directory of a klamm broker" in capsys.readouterr().err


def test_a_broker_on_this_machine_tells_itself_where_its_history_is(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = make_changes(broker)
    capsys.readouterr()
    # when: the type in any case
    server = ["--bootstrap-server", broker.bootstrap_servers]
    assert main(["configs", "history", *server, "--resource", "topic:orders", "--limit", "1"]) == 0
    assert main(["configs", "revert", *server, "--resource", "topic:orders", "--to", moment]) == 0
    # then
    told = capsys.readouterr().out.splitlines()
    assert "TOPIC:orders" in told[0]
    assert told[-1] == "TOPIC:orders: 3 config(s) reverted."


def test_a_resource_without_a_type_is_refused_and_not_just_found_unchanged(
    broker: Broker, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_changes(broker)
    assert main(["configs", "history", "--data-dir", str(data_dir), "--resource", "orders"]) == 1
    assert "--resource orders: expected TYPE:NAME" in (told := capsys.readouterr().err)
    assert "a topic is TOPIC:orders" in told
    # users and clients are spelled as the history spells them
    assert configs(broker, "--alter", "--user", "una", "--add-config", "acks=1") == 0
    assert main(["configs", "history", "--data-dir", str(data_dir), "--resource", "user 'una'"]) == 0
    assert "acks: unset -> 1" in capsys.readouterr().out
