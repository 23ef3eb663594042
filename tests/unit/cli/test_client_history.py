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


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[klamm.Broker]:
    with klamm.Broker(data_dir=tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.fixture
def user(tmp_path: Path) -> str:
    """Name of a user that no other test has."""
    return tmp_path.name


@pytest.fixture
def run(broker: klamm.Broker, capsys: pytest.CaptureFixture[str]) -> Command:
    def command(*words: str) -> tuple[int, str]:
        where = ("--data-dir", str(broker.data_dir), "--bootstrap-server", broker.bootstrap_servers)
        code = cli.main(["clients", *words, *where])
        captured = capsys.readouterr()
        source, _, errors = captured.err.partition("\n")
        assert code or source.startswith(f"Read from {broker.data_dir}: all changes that this broker made")
        return code, captured.out + (captured.err if code else errors)

    return command


def put(broker: klamm.Broker, user: str, **values: str | None) -> None:
    with AdminClient(broker.bootstrap_servers) as admin:
        ops = [ClientConfigOp(name, value) for name, value in values.items()]
        admin.alter_client_configs({ClientConfigEntity.of_user(user): ops}).all().result()


def test_history_reverts_client_config(broker: klamm.Broker, run: Command, user: str) -> None:
    # given
    put(broker, user, acks="1")
    newest = json.loads(run("history", "--user", user, "-o", "json")[1])[0]
    put(broker, user, **{"acks": "0", "heartbeat.interval.ms": "500", "rollout.acks": "10:all"})
    revert = ("revert", "--user", user, "--to", newest["at"])
    # when
    code, output = run(*revert, "--validate-only")
    # then
    assert code == 0
    assert output.splitlines() == [
        "  ~ acks: 0 -> 1",
        "  - heartbeat.interval.ms: 500 -> unset",
        "  - rollout.acks: 10:all -> unset",
        f"user '{user}': 3 configs would be reverted.",
    ]
    # when
    code, output = run(*revert)
    # then
    assert output.splitlines()[-1] == f"user '{user}': 3 configs reverted."
    assert run(*revert)[1].startswith(f"user '{user}' has the same configs as at ")
    history = run("history", "--user", user)[1].splitlines()
    assert any(f"  user '{user}'  acks: 0 -> 1  by" in line and "User:ANONYMOUS" in line for line in history[:3])
    assert "acks: unset -> 1" in history[-1]


def test_history_restores_roll_out_in_progress(broker: klamm.Broker, run: Command, user: str) -> None:
    # given
    put(broker, user, acks="1")
    put(broker, user, **{"rollout.acks": "10:all"})
    newest = json.loads(run("history", "--user", user, "-o", "json")[1])[0]
    put(broker, user, acks="0")
    put(broker, user, **{"rollout.acks": "10:all"})
    # when
    code, output = run("revert", "--user", user, "--to", newest["at"])
    # then
    assert (code, output.splitlines()) == (0, ["  ~ acks: 0 -> 1", f"user '{user}': 1 config reverted."])
    with AdminClient(broker.bootstrap_servers) as admin:
        alice = EntityFilter(components=(FilterComponent.of_entity(EntityType.USER, user),), strict=True)
        (described,) = admin.describe_client_configs(alice).result()
    assert described.configs == {"acks": "1", "rollout.acks": "10:all"}


def test_history_reverts_complete_roll_out_to_percentage(broker: klamm.Broker, run: Command, user: str) -> None:
    # given: a roll-out of another value follows a complete one only when the value before is to stay
    put(broker, user, acks="1")
    put(broker, user, **{"rollout.acks": "10:0"})
    newest = json.loads(run("history", "--user", user, "-o", "json")[1])[0]
    put(broker, user, **{"rollout.acks": "100:all"})
    # when
    code, output = run("revert", "--user", user, "--to", newest["at"])
    # then
    assert (code, output.splitlines()) == (
        0,
        ["  ~ rollout.acks: 100:all -> 10:0", f"user '{user}': 1 config reverted."],
    )
    with AdminClient(broker.bootstrap_servers) as admin:
        alice = EntityFilter(components=(FilterComponent.of_entity(EntityType.USER, user),), strict=True)
        (described,) = admin.describe_client_configs(alice).result()
    assert described.configs == {"acks": "1", "rollout.acks": "10:0"}


def test_revert_that_removes_acks_all_is_a_disruption(broker: klamm.Broker, run: Command, user: str) -> None:
    # given
    put(broker, user, **{"heartbeat.interval.ms": "500"})
    newest = json.loads(run("history", "--user", user, "-o", "json")[1])[0]
    put(broker, user, acks="all")
    # when
    code, output = run("revert", "--user", user, "--to", newest["at"], "--max-impact", "notice")
    # then
    assert code == 4
    assert "Impact: disruption" in output


def test_default_client_id_has_history(broker: klamm.Broker, run: Command, user: str) -> None:
    with AdminClient(broker.bootstrap_servers) as admin:
        entity = ClientConfigEntity.of_client(user, None)
        admin.alter_client_configs({entity: [ClientConfigOp("acks", "1")]}).all().result()
    code, output = run("history", "--user", user, "--client-defaults")
    assert (code, "  acks: unset -> 1  by " in output) == (0, True)
    assert run("history", "--user", user) == (0, f"No change of user '{user}' is recorded.\n")


def test_revert_keeps_other_entities(broker: klamm.Broker, run: Command, user: str) -> None:
    put(broker, user, acks="1")
    output = f"No change of user '{user}', client-id 'app' is recorded.\n"
    assert run("history", "--user", user, "--client", "app") == (0, output)
    assert run("history", "--user", f"User:{user}") == run("history", "--user", user)
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
