"""Commands with files without a flow, or with unavailable clusters: their errors, and how fast they appear."""

from __future__ import annotations

import re
import socket
import time
from typing import TYPE_CHECKING

import pytest

from klamm.cli import main as cli
from tests.support.long_tests import long_only
from tests.support.processes import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from klamm import Broker

PATIENT = "admin.timeout.ms=300000\n"
MUCH_LESS_S = 150
"""A busy machine does not take that long, and a command that waits for ``PATIENT`` takes longer."""
COMMANDS = ("verify", "cutover g", "status", "--plan")


def words(command: str, file: Path) -> list[str]:
    return ["mirror", str(file), "--plan"] if command == "--plan" else ["mirror", *command.split(), str(file)]


def write(directory: Path, more: str) -> Path:
    file = directory / "mm2.properties"
    port = free_port()
    file.write_text(f"clusters=A,B\nA.bootstrap.servers=127.0.0.1:{port}\nB.bootstrap.servers=127.0.0.1:{port}\n{more}")
    return file


@pytest.mark.parametrize("command", COMMANDS[:3])
def test_file_without_flow_is_rejected(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(words(command, write(tmp_path, ""))) == 2
    assert "no flow is enabled" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_file_of_other_format_is_named_once(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "topics=\\u00g\n")
    assert cli(words(command, file)) == 2
    assert capsys.readouterr().err.count(str(file)) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_file_is_named_once(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "none.properties"
    assert cli(words(command, file)) == 2
    assert capsys.readouterr().err.count(str(file)) == 1


@pytest.mark.parametrize("command", ["verify", "cutover g", "--plan"])
def test_invalid_client_property_is_rejected_with_key_of_file(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "A->B.enabled=true\nA.consumer.request.timeout.ms=soon\n")
    assert cli(words(command, file)) == 2
    assert "A.consumer.request.timeout.ms=soon: expected a whole number from 1" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_unavailable_clusters_are_reported_at_once(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not when ``admin.timeout.ms`` is over."""
    file = write(tmp_path, f"A->B.enabled=true\n{PATIENT}")
    began = time.monotonic()
    assert cli(words(command, file)) == 1
    assert time.monotonic() - began < MUCH_LESS_S
    output = capsys.readouterr()
    assert "Connection refused" in output.out + output.err


@pytest.mark.process
@pytest.mark.parametrize("command", ["verify", *long_only("cutover g")])
@pytest.mark.parametrize("silent", ["A", "B"])
def test_timeout_flag_limits_wait_for_silent_cluster(
    command: str, silent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], klamm_broker: Broker
) -> None:
    """Without the flag, the error is that of a request, after 10 s."""
    timeout_ms = 1000 if silent == "A" else 5000  # the limit holds for A as well, which is busy and read first
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        servers = {alias: address if alias == silent else klamm_broker.bootstrap_servers for alias in "AB"}
        lines = "".join(f"{alias}.bootstrap.servers={server}\n" for alias, server in servers.items())
        file = write(tmp_path, f"A->B.enabled=true\n{lines}")
        assert cli([*words(command, file), "--timeout", str(timeout_ms)]) == 1
    errors = capsys.readouterr().err
    assert re.search(f"{address}.*: [^ ]", errors), "it says why"
    assert "within 10 s" not in errors


@pytest.mark.parametrize(
    ("line", "allowing", "rejecting"),
    [("A.security.protocl=SSL", (), ("--strict",)), ("transforms=mask", ("--ignore-transforms",), ())],
)
def test_unused_keys_are_rejected_with_strict(
    line: str, allowing: tuple[str, ...], rejecting: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, f"A->B.enabled=true\n{line}\n")
    assert cli([*words("--plan", file), *rejecting]) == 2
    assert f"{file}: {line.partition('=')[0]}" in capsys.readouterr().err
    file.write_text(file.read_text() + "A->B.enabled=false\n")
    assert cli([*words("--plan", file), *allowing]) == 0
