"""Shell completion."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from klamm import cli
from klamm.cli.completion import bash_completion, words_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.process

BASH = shutil.which("bash") or ""


def complete(*words: str) -> list[str]:
    """What bash offers for the last word."""
    line = shlex.join(words)
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
        (("configs", "--prune"), ["--prune", "--prune-configs"]),
        (("configs", "ap"), ["apply"]),
        (("configs", "--entity-type", "broker"), ["brokers", "broker-loggers"]),
        (("topics", "--config", "retention.m"), ["retention.ms"]),
        (("topics", "-o", "j"), ["json"]),
        (("configs", "exp"), ["export"]),
        (("groups", "--reset"), ["--reset-offsets"]),
        (("produce", "--producer"), ["--producer-property", "--producer.config"]),
        (("consume", "--isolation-level", "read_c"), ["read_committed"]),
        (("completion", "z"), ["zsh"]),
        (("mirror", "sta"), ["status"]),
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
def test_completion_prints_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == cli.EXIT_OK
    assert "complete -o filenames -F _klamm klamm" in capsys.readouterr().out


def test_unknown_shell_is_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["completion", "fish"])
    assert ended.value.code == cli.EXIT_USAGE


HOSTILE_NAMES = (
    "$(touch pwned)",
    "`touch pwned`",
    "<(touch pwned)",
    "a;touch pwned;",
    "~/$HOME/${IFS}",
    "a b' \" \\ !! *",
    "größe&|",
    "--delete",
)


def typed_in_bash(lines: Sequence[str], directory: Path) -> None:
    """Type lines into an interactive bash that has the completion script, each at its prompt, and wait until it ends.

    What is typed before the prompt may be lost while bash changes the mode of the terminal.
    """
    (directory / "script").write_text(bash_completion())
    (directory / "inputrc").touch()
    terminal, end = pty.openpty()
    environment = {
        "HOME": str(directory),  # for the history of commands
        "PATH": f"{directory}:{os.environ['PATH']}",
        "INPUTRC": str(directory / "inputrc"),
        "LC_ALL": "C.UTF-8",
        "PS1": r"prompt-\#>",  # with the number of the command
    }
    with subprocess.Popen(
        [BASH, "--norc", "--noprofile", "-i"], stdin=end, stdout=end, stderr=end, cwd=directory, env=environment,
        start_new_session=True,
    ):  # fmt: skip
        os.close(end)
        written = b""
        for number, line in enumerate(("source script", *lines, "exit"), 1):
            while f"prompt-{number}>".encode() not in written:
                written += os.read(terminal, 65_536)
            os.write(terminal, f"{line}\n".encode())
        with suppress(OSError):  # EIO once bash has ended
            while os.read(terminal, 65_536):
                pass
    os.close(terminal)


@pytest.mark.parametrize("command", ["topics --topic", "groups --group"])
def test_bash_quotes_names_from_the_cluster(command: str, tmp_path: Path) -> None:
    # given
    names = [f"{number}{name}" for number, name in enumerate(HOSTILE_NAMES)]
    (tmp_path / "names").write_text("\n".join(names) + "\n")
    (tmp_path / "klamm").write_text(
        '#!/bin/sh\ncase "$*" in *--list) cat names ;; *) printf "%s\\n" "$5" >> arguments ;; esac\n'
    )
    (tmp_path / "klamm").chmod(0o700)
    # when
    word, flag = command.split()
    start = f"klamm {word} --bootstrap-server localhost:9092 {flag}"
    typed_in_bash([f"{start} {number}\t" for number in range(len(names))], tmp_path)
    # then
    assert (tmp_path / "arguments").read_text() == (tmp_path / "names").read_text()
    assert not (tmp_path / "pwned").exists()


def test_names_are_requested_with_the_flags_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "klamm").write_text('#!/bin/sh\necho "$@" | tr " " "\\n"\n')
    (tmp_path / "klamm").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    flags = ("--bootstrap-server", "a", ":", "1,b", ":", "2", "--command-config", "'my.conf'", "--group", "a", ":", "b")
    assert complete("klamm", "offsets", *flags, "--topic", "") == (
        ["topics", "--bootstrap-server", "a:1,b:2", "--timeout", "5000", "--command-config", "my.conf", "--list"]
    )
