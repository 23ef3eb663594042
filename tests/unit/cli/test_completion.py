"""Completion, as the shell asks for it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from klamm import cli
from klamm.cli.completion import bash_completion, words_of

pytestmark = pytest.mark.process

BASH = shutil.which("bash") or ""


def complete(*words: str) -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    script = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _klamm; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        [BASH, "-c", f"{bash_completion()}\n{script}"], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout.split()


def test_commands_are_completed() -> None:
    assert complete("klamm", "top") == ["topics"]
    assert {command.name for command in cli.COMMANDS} <= set(complete("klamm", ""))


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("topics", "--cr"), ["--create"]),
        (("configs", "--boot"), ["--bootstrap-server"]),
        (("topics", "--boot"), ["--bootstrap-server"]),
        (("topics", "--delete-"), []),
        (("configs", "--add-config-f"), ["--add-config-file"]),
        (("configs", "--prune"), ["--prune-configs"]),
        (("configs", "ap"), ["apply"]),
        (("configs", "--entity-type", "broker"), ["brokers", "broker-loggers"]),
        (("topics", "--config", "retention.m"), ["retention.ms"]),
        (("topics", "-o", "j"), ["json"]),
        (("configs", "exp"), ["export"]),
        (("groups", "--reset"), ["--reset-offsets"]),
        (("produce", "--producer"), ["--producer-property", "--producer.config"]),
        (("consume", "--isolation-level", "read_c"), ["read_committed"]),
        (("completion", "z"), ["zsh"]),
        (("mirror", "st"), ["status"]),
        (("clients", "rev"), ["revert"]),
        (("registrations", "rep"), ["report"]),
        (("mirror", "--source-b"), ["--source-bootstrap-server"]),
    ],
)
def test_flags_and_their_values_are_completed(words: tuple[str, ...], offered: list[str]) -> None:
    assert complete("klamm", *words) == offered


def test_every_flag_of_help_is_offered() -> None:
    assert {"--listen", "--data-dir", "--set"} <= set(words_of("broker"))
    assert {"test", "--rules", "--principal"} <= set(words_of("policy"))


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_command_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == cli.EXIT_OK
    assert "complete -o filenames -F _klamm klamm" in capsys.readouterr().out


def test_an_unknown_shell_is_wrong_usage() -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["completion", "fish"])
    assert ended.value.code == cli.EXIT_USAGE
