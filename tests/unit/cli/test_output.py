from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.cli.output import write

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
def test_what_others_chose_does_not_steer_the_terminal_of_people(
    output: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def human() -> Sequence[str]:
        return [HOSTILE]

    write(output, [HOSTILE], human)
    assert capsys.readouterr().out == shown


def test_columns_keep_their_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    write("human", [], lambda: ["Topic: a\tPartition: 0"], has_tabs=True)
    assert capsys.readouterr().out == "Topic: a\tPartition: 0\n"
