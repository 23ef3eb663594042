"""``klamm clients history`` and ``revert``: recorded changes of client configs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm import cli
from klamm.admin import AdminClient, ClientConfigEntity, ClientConfigOp, EntityFilter, EntityType, FilterComponent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Command = Callable[..., tuple[int, str]]

pytestmark = pytest.mark.process

ALICE = ClientConfigEntity.of_user("alice")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[klamm.Broker]:
    with klamm.Broker(data_dir=tmp_path / "data") as running:
        yield running


@pytest.fixture
def run(broker: klamm.Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def command(*words: str) -> tuple[int, str]:
        where = ("--data-dir", str(tmp_path / "data"), "--bootstrap-server", broker.bootstrap_servers)
        code = cli.main(["clients", *words, *where])
        captured = capsys.readouterr()
        source, _, errors = captured.err.partition("\n")
        assert code or source.startswith(f"Read from {tmp_path / 'data'}: all changes that this broker made")
        return code, captured.out + (captured.err if code else errors)

    return command


def put(broker: klamm.Broker, **values: str | None) -> None:
    with AdminClient(broker.bootstrap_servers) as admin:
        ops = [ClientConfigOp(name, value) for name, value in values.items()]
        admin.alter_client_configs({ALICE: ops}).all().result()


def test_history_reverts_client_config(broker: klamm.Broker, run: Command) -> None:
    # given
    put(broker, acks="1")
    newest = json.loads(run("history", "--user", "alice", "-o", "json")[1])[0]
    put(broker, **{"acks": "0", "heartbeat.interval.ms": "500", "rollout.acks": "10:all"})
    revert = ("revert", "--user", "alice", "--to", newest["at"])
    # when
    code, output = run(*revert, "--validate-only")
    # then
    assert code == 0
    assert output.splitlines() == [
        "  ~ acks: 0 -> 1",
        "  - heartbeat.interval.ms: 500 -> unset",
        "  - rollout.acks: 10:all -> unset",
        "user 'alice': 3 configs would be reverted.",
    ]
    # when
    code, output = run(*revert)
    # then
    assert output.splitlines()[-1] == "user 'alice': 3 configs reverted."
    assert run(*revert)[1].startswith("user 'alice' has the same configs as at ")
    history = run("history", "--user", "alice")[1].splitlines()
    assert any("  user 'alice'  acks: 0 -> 1  by" in line and "User:ANONYMOUS" in line for line in history[:3])
    assert "acks: unset -> 1" in history[-1]


def test_history_restores_roll_out_in_progress(broker: klamm.Broker, run: Command) -> None:
    # given
    put(broker, acks="1")
    put(broker, **{"rollout.acks": "10:all"})
    newest = json.loads(run("history", "--user", "alice", "-o", "json")[1])[0]
    put(broker, acks="0")
    put(broker, **{"rollout.acks": "10:all"})
    # when
    code, output = run("revert", "--user", "alice", "--to", newest["at"])
    # then
    assert (code, output.splitlines()) == (0, ["  ~ acks: 0 -> 1", "user 'alice': 1 config reverted."])
    with AdminClient(broker.bootstrap_servers) as admin:
        alice = EntityFilter(components=(FilterComponent.of_entity(EntityType.USER, "alice"),), strict=True)
        (described,) = admin.describe_client_configs(alice).result()
    assert described.configs == {"acks": "1", "rollout.acks": "10:all"}


def test_history_reverts_complete_roll_out_to_percentage(broker: klamm.Broker, run: Command) -> None:
    # given: a roll-out of another value follows a complete one only when the value before is to stay
    put(broker, acks="1")
    put(broker, **{"rollout.acks": "10:0"})
    newest = json.loads(run("history", "--user", "alice", "-o", "json")[1])[0]
    put(broker, **{"rollout.acks": "100:all"})
    # when
    code, output = run("revert", "--user", "alice", "--to", newest["at"])
    # then
    assert (code, output.splitlines()) == (0, ["  ~ rollout.acks: 100:all -> 10:0", "user 'alice': 1 config reverted."])
    with AdminClient(broker.bootstrap_servers) as admin:
        alice = EntityFilter(components=(FilterComponent.of_entity(EntityType.USER, "alice"),), strict=True)
        (described,) = admin.describe_client_configs(alice).result()
    assert described.configs == {"acks": "1", "rollout.acks": "10:0"}


def test_default_client_id_has_history(broker: klamm.Broker, run: Command) -> None:
    with AdminClient(broker.bootstrap_servers) as admin:
        entity = ClientConfigEntity.of_client("alice", None)
        admin.alter_client_configs({entity: [ClientConfigOp("acks", "1")]}).all().result()
    code, output = run("history", "--user", "alice", "--client-defaults")
    assert (code, "  acks: unset -> 1  by " in output) == (0, True)
    assert run("history", "--user", "alice") == (0, "No change of user 'alice' is recorded.\n")


def test_revert_keeps_other_entities(broker: klamm.Broker, run: Command) -> None:
    put(broker, acks="1")
    output = "No change of user 'alice', client-id 'app' is recorded.\n"
    assert run("history", "--user", "alice", "--client", "app") == (0, output)
    assert run("history", "--user", "User:alice") == run("history", "--user", "alice")
    now = datetime.now(UTC).isoformat()
    assert run("revert", "--user-defaults", "--to", now)[1].startswith("the default user has the same configs as at ")


def test_directory_without_broker_data_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["clients", "history", "--user", "alice", "--data-dir", str(tmp_path)])
    assert code == 1
    assert "not the data directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["history"],
        ["history", "--data-dir", "d"],
        ["history", "--data-dir", "d", "--user", "u", "--user-defaults"],
        ["history", "--data-dir", "d", "--user", "u", "--client", "c", "--client-defaults"],
        ["revert", "--data-dir", "d", "--user", "u", "--to", "x"],
    ],
)
def test_wrong_usage_ends_with_exit_code_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["clients", *words])
    assert exit_info.value.code == 2
