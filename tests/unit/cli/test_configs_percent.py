"""``klamm configs --alter --percent``: a new value for some of a user's clients, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import klamm
from klamm import cli
from klamm.admin import ClientConfigEntity, ClientConfigOp
from klamm.cli.configs.clients import stage
from klamm.cli.connection import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    config = {"client.configs.allowed.keys": "acks, heartbeat.interval.ms"}
    with klamm.Broker(config=config) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def run(address: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def command(*words: str) -> tuple[int, str]:
        code = cli.main(["configs", *words, "--bootstrap-server", address])
        captured = capsys.readouterr()
        warnings = ("Warning: no client of user",)
        errors = [line for line in captured.err.splitlines(keepends=True) if not line.startswith(warnings)]
        return code, captured.out + "".join(errors)

    return command


def described(run: Callable[..., tuple[int, str]], user: str) -> str:
    return run("--describe", "--user", user)[1].strip().rpartition(" are ")[2]


def test_value_is_rolled_out_by_percentage(run: Callable[..., tuple[int, str]]) -> None:
    def alter(percent: str) -> str:
        assert run("--alter", "--user", "alice", "--add-config", "acks=all", "--percent", percent)[0] == 0
        return described(run, "alice")

    assert run("--alter", "--user", "alice", "--add-config", "acks=1")[0] == 0
    assert alter("10") == "acks=1, rollout.acks=10:all"
    assert alter("12.5") == "acks=1, rollout.acks=12.5:all"
    assert alter("0") == "acks=1"
    assert alter("50") == "acks=1, rollout.acks=50:all"
    assert alter("100") == "acks=1, rollout.acks=100:all"


def test_percent_0_restores_the_value_that_percent_100_replaced(run: Callable[..., tuple[int, str]]) -> None:
    change = ("--alter", "--user", "dora", "--add-config", "acks=all")
    assert run("--alter", "--user", "dora", "--add-config", "acks=1")[0] == 0
    assert run(*change, "--percent", "100") == (
        0,
        "Completed updating config for user dora.\n"
        "  acks=all for every client of user 'dora'; --percent 0 restores acks=1,"
        " --add-config acks=all without --percent makes it final\n",
    )
    assert run(*change, "--percent", "0") == (
        0,
        "Completed updating config for user dora.\n  acks=1 for every client of user 'dora'\n",
    )
    assert described(run, "dora") == "acks=1"


def test_percent_0_without_roll_out_fails_with_flags_to_use(run: Callable[..., tuple[int, str]]) -> None:
    change = ("--alter", "--user", "emil", "--add-config", "acks=all")
    code, output = run(*change, "--percent", "0")
    assert code == 1
    assert "user 'emil' has no roll-out of acks" in output
    assert "no acks is set" in output
    assert run(*change)[0] == 0
    code, output = run(*change, "--percent", "0")
    assert code == 1
    assert "acks=all is set for every client" in output
    assert "--delete-config acks" in output
    assert described(run, "emil") == "acks=all"


def test_value_without_percent_ends_roll_out(run: Callable[..., tuple[int, str]]) -> None:
    change = ("--alter", "--user", "fritz", "--add-config", "acks=all")
    assert run(*change, "--percent", "100")[0] == 0
    assert run(*change)[0] == 0
    assert described(run, "fritz") == "acks=all"


def test_next_roll_out_starts_from_completed_value(run: Callable[..., tuple[int, str]]) -> None:
    def alter(value: str, percent: str) -> str:
        code, output = run("--alter", "--user", "gerda", "--add-config", f"acks={value}", "--percent", percent)
        assert code == 0
        return output.splitlines()[-1].strip()

    assert run("--alter", "--user", "gerda", "--add-config", "acks=1")[0] == 0
    alter("all", "100")
    assert alter("0", "10") == "acks=0 for 10 % of the clients of user 'gerda'; the others: acks=all"
    assert described(run, "gerda") == "acks=all, rollout.acks=10:0"
    assert alter("0", "0") == "acks=all for every client of user 'gerda'"


def test_deleted_config_removes_roll_out(run: Callable[..., tuple[int, str]]) -> None:
    assert run("--alter", "--user", "bob", "--add-config", "acks=1", "--percent", "10")[0] == 0
    assert run("--alter", "--user", "bob", "--delete-config", "acks")[0] == 0
    assert described(run, "bob") == ""


@pytest.mark.parametrize(
    "words",
    [
        ("--user", "alice", "--client", "app", "--add-config", "acks=1"),
        ("--topic", "t", "--add-config", "retention.ms=1"),
        ("--user", "alice", "--delete-config", "acks"),
    ],
)
def test_percent_is_rejected_for_other_entities(words: tuple[str, ...], run: Callable[..., tuple[int, str]]) -> None:
    code, output = run("--alter", *words, "--percent", "10")
    assert code == 1
    assert "--percent" in output


def test_key_not_allowed_by_broker_is_rejected_by_name(run: Callable[..., tuple[int, str]]) -> None:
    code, output = run("--alter", "--user", "carol", "--add-config", "session.timeout.ms=10000")
    assert code == 1
    assert "client.configs.allowed.keys" in output
    assert described(run, "carol") == ""


def test_percent_is_converted_to_roll_out_operation() -> None:
    alice = ClientConfigEntity.of_user("alice")
    assert stage(alice, {}, ("acks", "all"), 0.5).operation == ClientConfigOp("rollout.acks", "0.5:all")
    assert stage(alice, {"rollout.acks": "10:0"}, ("acks", "0"), 0).operation == ClientConfigOp("rollout.acks", None)
    with pytest.raises(RequestError, match="no roll-out of acks"):
        stage(alice, {"rollout.heartbeat.interval.ms": "10:5"}, ("acks", "0"), 0)


def test_percent_without_any_client_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["configs", "--alter", "--user", "bob", "--add-config", "acks=1", "--percent", "0.001"])
    assert "expected 0, or a number from 0.01 to 100" in capsys.readouterr().err


@pytest.mark.parametrize("percent", ["130", "-1", "nan", "ten"])
def test_invalid_percent_is_rejected_with_range(percent: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["configs", "--alter", "--user", "bob", "--add-config", "acks=1", f"--percent={percent}"])
    assert f"argument --percent: {percent}: expected a number from 0 to 100" in capsys.readouterr().err
