"""Users, client ids and topics that do not exist, and the two spellings of a user."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

import klamm
from klamm import cli
from klamm.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from klamm.clients import KafkaProducer
from klamm.kafka_client.errors import ConnectionLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Command = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with klamm.Broker() as broker, AdminClient(broker.bootstrap_servers) as admin:
        alice = UserScramCredentialUpsertion("alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), "x")
        admin.alter_user_scram_credentials([alice]).all().result()
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id="payments"):
            yield broker.bootstrap_servers


@pytest.fixture
def alter(address: str, capsys: pytest.CaptureFixture[str]) -> Command:
    def command(*words: str) -> tuple[int, str, str]:
        code = cli.main(["configs", "--alter", "--add-config", "acks=1", "--bootstrap-server", address, *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def test_user_without_clients_gets_warning_with_suggestion(alter: Command) -> None:
    code, out, err = alter("--user", "ANONYMUS", "--validate-only")
    assert (code, out) == (0, "Valid: config for user ANONYMUS.\n")
    assert err == (
        "Warning: no client of user 'ANONYMUS' has ever registered for dynamic configs; did you mean ANONYMOUS?\n"
    )


def test_scram_user_is_suggested(alter: Command) -> None:
    assert "did you mean alice?" in alter("--user", "Alcie", "--validate-only")[2]
    assert "did you mean" not in alter("--user", "zz", "--validate-only")[2]
    assert alter("--user", "alice", "--validate-only")[2].endswith("registered for dynamic configs\n")


@pytest.mark.parametrize("more", [(), ("--validate-only",)])
def test_change_by_two_apis_warns_once(address: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Both validate before the first one changes anything."""
    change = ("--alter", "--user", "zz", "--add-config", "producer_byte_rate=5,acks=1")
    assert cli.main(["configs", *change, *more, "--bootstrap-server", address]) == 0
    assert capsys.readouterr().err == "Warning: no client of user 'zz' has ever registered for dynamic configs\n"


@pytest.mark.parametrize("words", [("--user", "User:"), ("--entity-type", "users", "--entity-name", "User:")])
def test_principal_without_name_is_not_the_default_user(alter: Command, words: tuple[str, ...]) -> None:
    """Such as ``--user User:$NAME`` in a script whose variable is not set."""
    assert alter(*words) == (1, "", "User: has no user name behind it; --user-defaults is for the default user\n")


@pytest.mark.parametrize("error", [ConnectionLostError("closed"), TimeoutError("no response in time")])
def test_change_succeeds_although_registrations_cannot_be_read(
    error: Exception, alter: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdminClient, "describe_client_configs", Mock(side_effect=error))
    assert alter("--user", "zz") == (0, "Completed updating config for user zz.\n", "")


def test_unknown_client_id_gets_warning_with_suggestion(alter: Command) -> None:
    _, _, err = alter("--user", "ANONYMOUS", "--client", "payment", "--validate-only")
    assert err.startswith("Warning: user 'ANONYMOUS' has no registered client with the client id 'payment'")
    assert err.endswith("; did you mean payments?\n")


@pytest.mark.parametrize(
    "words",
    [
        ("--user", "ANONYMOUS"),
        ("--user", "User:ANONYMOUS"),
        ("--entity-type", "users", "--entity-name", "User:ANONYMOUS"),
        ("--user", "User:ANONYMOUS", "--client", "payments"),
        ("--user", "ANONYMOUS", "--client-defaults"),
        ("--user-defaults",),
    ],
)
def test_registered_clients_and_defaults_get_no_warning(words: tuple[str, ...], alter: Command) -> None:
    assert alter(*words, "--validate-only")[::2] == (0, "")


def test_principal_and_name_are_one_user(address: str, alter: Command, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = alter("--user", "User:ANONYMOUS")
    assert (code, out) == (0, "Completed updating config for user ANONYMOUS.\n")
    for spelled in ("ANONYMOUS", "User:ANONYMOUS"):
        cli.main(["configs", "--describe", "--user", spelled, "--bootstrap-server", address])
        assert "Dynamic configs for user-principal 'ANONYMOUS' are acks=1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("--alter", "--add-config", "retention.ms=5"),
        ("--describe", "--all"),
        ("--alter", "--delete-config", "flush.ms"),
    ],
)
def test_missing_topic_is_named(words: tuple[str, ...], address: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["configs", *words, "--topic", "nosuch", "--bootstrap-server", address])
    texts = {"--alter": "The topic 'nosuch' does not exist.\n", "--describe": "Topic 'nosuch' does not exist\n"}
    assert (code, capsys.readouterr().err) == (1, texts[words[0]])
