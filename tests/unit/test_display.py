"""Names of applications in messages for people."""

from __future__ import annotations

import logging

import pytest

from klamm.display import MAX_SHOWN, LineFormatter, escaped, printable


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("app-1", "app-1"),
        ("ünïcødé \U0001f600", "ünïcødé \U0001f600"),
        ("line\nbreak", "line\\nbreak"),
        ("red\x1b[31m", "red\\x1b[31m"),
        ("to the left\u202e", "to the left\\u202e"),
        ("\x00", "\\x00"),
        ("x" * MAX_SHOWN, "x" * MAX_SHOWN),
        ("x" * (MAX_SHOWN + 1), "x" * MAX_SHOWN + "..."),
    ],
)
def test_printed_name_fits_one_line(name: str, shown: str) -> None:
    assert printable(name) == shown


def test_control_characters_of_value_are_escaped_without_truncation() -> None:
    assert escaped("RULE:^CN=(.*?)$\\d" + "x" * 100) == "RULE:^CN=(.*?)$\\d" + "x" * 100
    assert escaped("a\tb\r\n\x1b[2J\x9b" + "x" * 100) == "a\\tb\\r\\n\\x1b[2J\\x9b" + "x" * 100


def test_log_records_escape_control_characters_of_names() -> None:
    formatter = LineFormatter("%(levelname)s %(message)s")
    name = "app\nERROR forged\r\x1b[2J"
    error = ValueError(name)
    record = logging.LogRecord("n", logging.WARNING, "f", 1, "Client %s", (name,), (ValueError, error, None))
    lines = formatter.format(record).splitlines()
    assert lines[0] == r"WARNING Client app\nERROR forged\r\x1b[2J"
    assert all(line.startswith("  ") and line.isprintable() for line in lines[1:])
    assert len(lines) > 1
