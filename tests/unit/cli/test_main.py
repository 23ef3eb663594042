"""Entry point of the command line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from klamm import cli
from klamm.protocol.records import Record, encode_batch
from tests.support.klamm import KlammBroker
from tests.support.skips import skip_loudly
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_missing_command_prints_usage_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == cli.EXIT_USAGE
    assert "usage: klamm COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("command", [command.name for command in cli.COMMANDS])
def test_help_lists_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == cli.EXIT_OK
    assert f"\n  {command} " in capsys.readouterr().out


def test_unknown_command_is_rejected_with_allowed_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["brokr"]) == cli.EXIT_USAGE
    message = capsys.readouterr().err
    assert "'brokr'" in message
    assert ", ".join(command.name for command in cli.COMMANDS) in message


def test_command_gets_arguments_and_returns_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    seen: list[Sequence[str]] = []

    def run(words: Sequence[str]) -> int:
        seen.append(words)
        return 1

    monkeypatch.setattr(cli, "import_program", lambda name: SimpleNamespace(main=run))
    # when
    code = cli.main(["mirror", "mm2.properties", "--clusters", "B"])
    # then
    assert (code, seen) == (1, [["mm2.properties", "--clusters", "B"]])


def test_ctrl_c_ends_command_without_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "import_program", lambda name: SimpleNamespace(main=run))
    assert cli.main(["mirror"]) == 130


@pytest.mark.process
@pytest.mark.parametrize("words", ["--help", "completion bash"])
def test_full_output_is_reported_in_one_line(words: str) -> None:
    if not Path("/dev/full").exists():
        skip_loudly("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "klamm.cli", *words.split()],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == cli.EXIT_FAILED
    assert done.stderr == "klamm: the output could not be written: No space left on device\n"


@pytest.mark.process
@pytest.mark.parametrize("closed", ["<&- >&-", "2>&-"])
def test_closed_stdout_is_ignored(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{shlex.quote(sys.executable)} -m klamm.cli --version {closed}"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (cli.EXIT_OK, "")


def test_closed_stdin_reads_as_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (null := tmp_path / "null").touch()
    monkeypatch.setattr(os, "devnull", str(null))
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr(cli, "import_program", lambda _: SimpleNamespace(main=lambda _: len(sys.stdin.buffer.read())))
    assert cli.main(["produce"]) == cli.EXIT_OK
    sys.stdin.close()


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == cli.EXIT_OK
    assert capsys.readouterr().out.startswith("klamm 0.")


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_every_command_can_be_run(command: cli.Command) -> None:
    assert callable(getattr(import_module(command.module), command.function))


@pytest.mark.process
def test_serving_broker_imports_only_needed_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # Python writes a line per import to stderr
    with KlammBroker() as broker:
        # when
        with WireClient(broker.bootstrap_servers) as client:
            client.create_topic("orders")
            client.produce("orders", 0, encode_batch([Record(offset=0, timestamp=0, key=None, value=b"1")]))
        broker.stop()
        imported = set(re.findall(r"^import time:.*\| +(\w+)", broker.log_path.read_text(), re.MULTILINE))
    # then
    assert {"klamm", "asyncio"} <= imported
    unneeded = {"kafka", "pyspark", "rich", "pandas", "pyarrow", "numpy", "cryptography", "email"}
    assert imported & unneeded == set()


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "--list"),
        ("configs", "--describe", "--topic", "t"),
        ("configs", "--alter", "--user", "u", "--add-config", "acks=1"),
        ("export",),
        ("configs", "revert", "--topic", "t", "--to", "2026-01-01"),
        ("configs", "history"),
        ("clients", "revert", "--user", "u", "--data-dir", "d", "--to", "2026-01-01"),
        ("registrations", "report"),
        ("policy", "test", "house:Policy"),
    ],
)
def test_every_command_requires_bootstrap_server_alike(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    error = capsys.readouterr().err
    assert ended.value.code == cli.EXIT_USAGE
    assert error.count("\n") == 1
    assert "--bootstrap-server" in error


def test_configs_help_lists_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["configs", "--help"])
    output = capsys.readouterr().out
    for command in ("plan", "apply", "export", "history", "revert"):
        assert f"klamm configs {command}" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "configs histroy --topic orders",
            "klamm configs: unknown action 'histroy': expected one of plan, apply, export, history, revert;"
            " did you mean history?\n",
        ),
        (
            "clients revrt --user billing",
            "klamm clients: unknown action 'revrt': expected one of list, watch, history, revert;"
            " did you mean revert?\n",
        ),
        (
            "mirror stauts mm2.properties",
            "klamm mirror: stauts is neither a file nor an action; did you mean status?\n",
        ),
    ],
)
def test_unknown_action_is_rejected_with_the_nearest_one(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == cli.EXIT_USAGE
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("words", ["mirror pause", "mirror promote", "mirror reset --to-latest"])
def test_only_required_arguments_are_called_required(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(words.split())
    assert re.search("arguments are required: (A->B|FILE) ", capsys.readouterr().err)


@pytest.mark.process
def test_package_is_run_as_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "klamm", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == cli.version_line()


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_unknown_flag_is_reported_in_one_line(command: cli.Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command.name, "--no-such-flag"])
    error = capsys.readouterr().err
    assert ended.value.code == cli.EXIT_USAGE
    assert error.count("\n") == 1
    assert error.startswith(f"klamm {command.name}")
    assert error.endswith(" --help)\n")
