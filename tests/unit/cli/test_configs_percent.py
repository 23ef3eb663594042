"""``klamm configs --alter --percent``: a new value for some of a user's clients, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import klamm
from klamm import cli
from klamm.admin import ClientConfigOp
from klamm.cli.configs.clients import staged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
        return code, captured.out + captured.err

    return command


def described(run: Callable[..., tuple[int, str]], user: str) -> str:
    return run("--describe", "--user", user)[1].strip().rpartition(" are ")[2]


def test_a_value_is_rolled_out_step_by_step(run: Callable[..., tuple[int, str]]) -> None:
    def alter(percent: str) -> str:
        assert run("--alter", "--user", "alice", "--add-config", "acks=all", "--percent", percent)[0] == 0
        return described(run, "alice")

    assert run("--alter", "--user", "alice", "--add-config", "acks=1")[0] == 0
    assert alter("10") == "acks=1, rollout.acks=10:all"
    assert alter("12.5") == "acks=1, rollout.acks=12.5:all"
    assert alter("0") == "acks=1"
    assert alter("50") == "acks=1, rollout.acks=50:all"
    assert alter("100") == "acks=all"


def test_a_roll_out_is_deleted_with_its_config(run: Callable[..., tuple[int, str]]) -> None:
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
def test_a_percent_is_for_values_of_users_only(words: tuple[str, ...], run: Callable[..., tuple[int, str]]) -> None:
    code, said = run("--alter", *words, "--percent", "10")
    assert code == 1
    assert "--percent" in said


def test_a_key_that_the_broker_does_not_allow_is_refused_by_name(run: Callable[..., tuple[int, str]]) -> None:
    code, said = run("--alter", "--user", "carol", "--add-config", "session.timeout.ms=10000")
    assert code == 1
    assert "client.configs.allowed.keys" in said
    assert described(run, "carol") == ""


def test_percents_become_operations() -> None:
    assert staged({"acks": "all"}, None) == [ClientConfigOp("acks", "all")]
    assert staged({"acks": "all"}, 0.5) == [ClientConfigOp("rollout.acks", "0.5:all")]


@pytest.mark.parametrize("percent", ["130", "-1", "nan", "ten"])
def test_what_is_no_percent_is_told_with_what_is_expected(percent: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["configs", "--alter", "--user", "bob", "--add-config", "acks=1", f"--percent={percent}"])
    assert f"argument --percent: {percent}: expected a number from 0 to 100" in capsys.readouterr().err
