"""klamm configs for quotas, SCRAM credentials and addresses, without any password in the output."""

from __future__ import annotations

import json
import logging
import socket
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm import cli
from klamm.cli.configs.quotas import java_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

SECRET = "s3cret"  # noqa: S105  # of nobody


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with klamm.Broker() as broker:
        yield broker.bootstrap_servers


class Command:
    """Runs ``klamm configs`` and returns exit code, stdout and stderr."""

    def __init__(self, address: str, capture: pytest.CaptureFixture[str]) -> None:
        self._address = address
        self._capture = capture

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._capture.readouterr()
        try:
            code = cli.main(["configs", *words, "--bootstrap-server", self._address])
        except SystemExit as error:
            code = int(error.code or 0)
        return code, *self._capture.readouterr()


@pytest.fixture
def configs(address: str, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(address, capsys)


def test_user_document_has_quotas_credentials_and_configs(configs: Command) -> None:
    # given
    user = ("--user", "una")
    assert configs("--alter", *user, "--add-config", "producer_byte_rate=1e3d,acks=all")[0] == 0
    assert configs("--alter", *user, "--add-config", f"SCRAM-SHA-512=[password={SECRET}]")[0] == 0
    # when
    lines = configs("--describe", *user)[1].splitlines()
    (document,) = json.loads(configs("--describe", *user, "-o", "json")[1])
    # then
    assert lines == [
        "Quota configs for user-principal 'una' are producer_byte_rate=1000.0",
        "SCRAM credential configs for user-principal 'una' are SCRAM-SHA-512=iterations=4096",
        "Dynamic configs for user-principal 'una' are acks=all",
    ]
    assert document == {
        "entity": {"user": "una"},
        "quotas": {"producer_byte_rate": 1000.0},
        "credentials": {"SCRAM-SHA-512": {"iterations": 4096}},
        "configs": {"acks": "all"},
        "registered": [],
    }


def test_one_invalid_kind_changes_nothing(configs: Command) -> None:
    # when: the quotas alone would be fine
    code, _, complaint = configs("--alter", "--user", "both", "--add-config", "producer_byte_rate=1,acks=9")
    # then
    assert (code, configs("--describe", "--user", "both")[1]) == (1, "")
    assert "Invalid value 9 for configuration acks" in complaint
    # when: the dynamic configs alone would be
    code, _, complaint = configs("--alter", "--user", "both", "--add-config", "producer_byte_rate=-1,acks=1")
    # then
    assert (code, configs("--describe", "--user", "both")[1]) == (1, "")
    assert "must be greater than 0" in complaint


def test_validate_only_sends_request_and_changes_nothing(configs: Command) -> None:
    assert configs("--alter", "--ip", "10.1.1.1", "--add-config", "connection_creation_rate=5", "--validate-only") == (
        0,
        "Valid: config for ip 10.1.1.1.\n",
        "",
    )
    assert configs("--describe", "--ip", "10.1.1.1") == (0, "", "")
    assert configs("--alter", "--ip-defaults", "--add-config", "connection_creation_rate=-5", "--validate-only")[0] == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--client", "c", "--add-config", f"SCRAM-SHA-256=[password={SECRET}]"), "Unexpected config names: SCRAM"),
        (("--user", "u", "--add-config", "retention.ms=1"), "Unexpected config names: retention.ms"),
        (("--user", "u", "--add-config", f"SCRAM-SHA-1=[password={SECRET}]"), "Unexpected config names: SCRAM-SHA-1"),
        (("--user", "u", "--add-config", f"SCRAM-SHA-256={SECRET}"), "Invalid credential property SCRAM-SHA-256: exp"),
        (("--user", "u", "--add-config", f"SCRAM-SHA-256=[iterations=,password={SECRET}]"), "Invalid credential"),
        (("--user", "u", "--add-config", f"SCRAM-SHA-256=[iterations=9,password={SECRET}]"), "less than the minimum"),
        (("--user", "u", "--add-config", f"SCRAM-SHA-256=[iterations=99999,password={SECRET}]"), "iterations"),
        (("--user", "u", "--add-config", f"SCRAM-SHA-256=[password={SECRET}]", "--validate-only"), "no way to check"),
        (
            ("--user", "u", "--add-config", f"SCRAM-SHA-256=[iterations=8192, password={SECRET}"),
            "Invalid entity config",
        ),
        (("--user", "u", "--add-config", "request_percentage=1,acks=1", "--percent", "5"), "--percent is for dynamic"),
        (("--user", "u", "--add-config", "producer_byte_rate=1_000"), "Cannot parse quota configuration value"),
        (("--user", "u", "--append-config", "producer_byte_rate=1"), "are for lists"),
    ],
)
def test_rejection_is_one_line_without_password(
    words: tuple[str, ...], complaint: str, configs: Command, caplog: pytest.LogCaptureFixture
) -> None:
    # when
    with caplog.at_level(logging.DEBUG):
        code, out, err = configs("--alter", *words)
    # then
    assert code == 1
    assert complaint in err
    assert err.count("\n") == 1
    assert SECRET not in out + err + caplog.text


def test_password_is_never_printed_or_logged(
    configs: Command, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    # given
    file = tmp_path / "user.properties"
    file.write_text(f"SCRAM-SHA-256=iterations=8192,password={SECRET}\n")
    with caplog.at_level(logging.DEBUG):
        # when
        outcomes = [
            configs("--alter", "--user", "eve", "--add-config-file", str(file), "-o", "json"),
            configs("--describe", "--user", "eve", "-o", "yaml"),
            configs("--alter", "--user", "eve", "--add-config", "SCRAM-SHA-256=[iterations=1,", f"password={SECRET}]"),
        ]
    # then
    assert [code for code, _, _ in outcomes] == [0, 0, 2]
    assert json.loads(outcomes[0][1])["changes"] == [{"name": "SCRAM-SHA-256", "operation": "set", "value": None}]
    assert SECRET not in str(outcomes) + caplog.text
    assert "password=(hidden)" in outcomes[2][2]


def test_unresolvable_ip_entity_is_rejected(configs: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    def fail(*_: object) -> None:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    # when
    code, _, err = configs("--describe", "--ip", "no.such.host")
    # then
    assert (code, err) == (
        1,
        "The entity name for ips must be a valid IP or resolvable host, but it is: no.such.host\n",
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1024.0, "1024.0"),
        (12.5, "12.5"),
        (9_999_999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (123_456_789.5, "1.234567895E8"),
        (1e16, "1.0E16"),
        (9.223372036854775e18, "9.223372036854775E18"),
        (0.001, "0.001"),
        (0.00012, "1.2E-4"),
        (1.5e-5, "1.5E-5"),
        (-2e7, "-2.0E7"),
        (0.0, "0.0"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_doubles_are_formatted_like_java(value: float, text: str) -> None:
    assert java_text(value) == text
