from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from klamm.cli.output import print_result

if TYPE_CHECKING:
    from collections.abc import Sequence

HOSTILE = "acks\x1b[2J\n\t1"


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("human", "acks\\x1b[2J\\n\\t1\n"),
        ("json", '[\n  "acks\\u001b[2J\\n\\t1"\n]\n'),
    ],
)
def test_control_characters_are_escaped_in_text(output: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    def human() -> Sequence[str]:
        return [HOSTILE]

    print_result(output, [HOSTILE], human)
    assert capsys.readouterr().out == shown


def test_tab_separated_columns_keep_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    print_result("human", [], lambda: ["Topic: a\tPartition: 0"], has_tabs=True)
    assert capsys.readouterr().out == "Topic: a\tPartition: 0\n"


def test_result_without_reader_ends_an_endless_command(monkeypatch: pytest.MonkeyPatch) -> None:
    class Output(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Output())
    with pytest.raises(BrokenPipeError):
        print_result("human", [], lambda: ["line"], ends_without_reader=True)


@pytest.mark.process
@pytest.mark.parametrize(
    ("output", "printed"), [("human", "j\\xf6rg"), ("json", '"j\\u00f6rg"'), ("yaml", '"j\\xF6rg"')]
)
def test_characters_outside_terminal_encoding_are_escaped(output: str, printed: str) -> None:
    program = "import sys, types; from klamm import cli; from klamm.cli import output;"
    program += f"run = lambda words: output.print_result({output!r}, 'j\\xf6rg', lambda: ['j\\xf6rg']) or 0;"
    program += "cli.import_program = lambda name: types.SimpleNamespace(main=run); sys.exit(cli.main(['topics']))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, printed, "")
